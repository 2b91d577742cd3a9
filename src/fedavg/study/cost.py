"""What a round of a plan costs on this machine, in seconds and memory: measured on a few of its clients, then scaled.

A few clients are really trained in this process, and the server takes one step; both on one core. The rest is computed:
who is asked in the first rounds and how large they are, how their work is spread over the workers, and the machine's
own rates (`rates.py`). If one client takes long, only a few of its steps are timed. Secure aggregation is not included.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import heapreplace
from math import ceil
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Final

import numpy as np
import torch

from fedavg import machine, seeds, trees
from fedavg.cohorts import cohort_size, sample_cohort
from fedavg.engine.memory import keep_freed_memory, trim
from fedavg.engine.trainer import Trainer
from fedavg.fleets.start import method_of
from fedavg.fleets.worker import TrainJob, Worker
from fedavg.plan import Plan
from fedavg.samplers import make_sampler
from fedavg.setup import Setup, population_of
from fedavg.states import ClientStates
from fedavg.study.rates import MeasuredRates
from fedavg.sums import to_float
from fedavg.types import Examples, FederatedData, Work
from fedavg.usage import own_mb, peak_mb

#: Seconds for which one client may be trained here; if it would take longer, only a few steps are taken.
LONG_S: Final = 2.0
#: Seconds for which a timed step is repeated.
REPEAT_S: Final = 0.25
#: How many rounds' cohorts are drawn.
ROUNDS: Final = 8
#: Bytes that a server holds for each number of the model after about ten rounds: sums, means, the weights before and
#: after, and what its allocator keeps. Fitted on the workloads of the bench; validated on other plans
#: (benchmarks/held_out.py).
SERVER_BYTES: Final = 80


@dataclass(frozen=True)
class Cost:
    """A round without its evaluation, an evaluation, and the memory of all processes; None if unknown."""

    round_s: float
    evaluation_s: float
    peak_mb: float | None


@dataclass(frozen=True)
class Held:
    """Memory in MB: the peak of this process until the step was recorded and verified; and, beyond that of idle
    processes, what is loaded before workers start (the data, the trainer, whatever else the user's process has), what a
    training worker comes to hold, and what an evaluation adds to that."""

    at_start: float
    loaded: float
    training: float
    evaluating: float


def cost_of(setup: Setup, data: FederatedData, trainer: Trainer, rates: MeasuredRates) -> Cost:
    """The cost if this process ran the plan: its memory counts."""
    with ExitStack() as scratch:
        states = None
        if setup.keeps_state:
            states = ClientStates(Path(scratch.enter_context(TemporaryDirectory(prefix="fedavg-"))))
        at_start_mb = peak_mb()
        keep_freed_memory()
        trim()
        loaded_mb = own_mb() - rates.imported_mb
        probe = _Probe(setup, data, trainer, states)
        ready_mb = own_mb()
        seconds_of = probe.client_s()
        trained_mb = own_mb()
        evaluation_s = probe.evaluation_s()
        grown = (loaded_mb, trained_mb - ready_mb, own_mb() - trained_mb)
        held = Held(at_start_mb, *(max(mb, 0.0) for mb in grown))
        server_s = probe.server_s()
    plan = setup.plan
    crowded = rates.crowding if min(plan.workers, machine.cores()) > 1 else 1.0
    shared_message = rates.message_s * (2 if plan.workers >= machine.cores() else 1)
    rounds = [
        makespan([crowded * seconds_of(n) + shared_message for n in sizes], plan.workers)
        for sizes in cohorts(plan, data)
    ]
    return Cost(
        fmean(rounds) + server_s,
        crowded * evaluation_s / plan.workers,
        peak_of(setup, trainer, rates, held),
    )


def cohorts(plan: Plan, data: FederatedData) -> list[list[int]]:
    """The sizes of the clients asked in the first rounds; drawn uniformly if the plan's sampler would need to know
    more."""
    clients = population_of(data)
    if make_sampler(plan.sampling).needs_losses or plan.noise_source != "seeded":
        able = np.flatnonzero(data.sizes)
        draws = (seeds.rng(plan.seed, round, seeds.NONE, "estimate") for round in range(1, ROUNDS + 1))
        drawn = [rng.choice(able, cohort_size(plan.C, clients), replace=False).tolist() for rng in draws]
    else:
        drawn = [sample_cohort(plan, clients, round) for round in range(1, min(ROUNDS, plan.rounds) + 1)]
    return [[int(data.sizes[k]) for k in cohort] for cohort in drawn]


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of these jobs is done, if the longest go first to any free worker.

    >>> makespan([3, 2, 2, 1], workers=2)
    4.0
    """
    ends = [0.0] * workers
    for job in sorted(seconds, reverse=True):
        heapreplace(ends, ends[0] + job)
    return max(ends)


class _Probe:
    """Does a few jobs of a worker and of the server here, and times them."""

    def __init__(self, setup: Setup, data: FederatedData, trainer: Trainer, states: ClientStates | None) -> None:
        self._setup, self._data, self._trainer = setup, data, trainer
        self._state = setup.algorithm.initial(trainer.weights.clone())
        self._work = setup.algorithm.adjust(self._state, setup.plan.work(1))
        self._ring = torch.zeros(setup.update_size(len(trainer.weights)), dtype=torch.int64)
        self._worker = Worker(setup, data, trainer, setup.algorithm.shared(self._state).clone(), self._ring, states)
        self._jobs = 0
        #: CPU time; other work on the machine does not count.
        self._clock = process_time if setup.plan.device == "cpu" else perf_counter

    def client_s(self) -> Callable[[int], float]:
        """Seconds by the number of a client's examples."""
        asked = sorted({n for sizes in cohorts(self._setup.plan, self._data) for n in sizes})
        step_s = self._step_s()

        def by_steps(n: int) -> float:
            return step_s * steps_of(n, self._work)

        if not asked or by_steps(asked[-1]) > LONG_S:
            return by_steps
        chosen = sorted({asked[0], asked[len(asked) // 2], asked[-1]})
        found = [self._trained_s(int(np.flatnonzero(self._data.sizes == n)[0])) for n in chosen]
        return lambda n: float(np.interp(n, chosen, found))

    def _step_s(self) -> float:
        first = self._data.client(int(np.flatnonzero(self._data.sizes == self._data.sizes.max())[0]))
        batch = trees.take(first, slice(0, int(min(self._work.batch, len(first)))))
        rng = seeds.rng(self._setup.plan.seed, seeds.NONE, seeds.NONE, "estimate")
        steps = self._trainer.steps(1e-6)

        def step() -> None:
            for piece in self._trainer.pieces(batch, len(batch), rng):
                self._trainer.epoch_for(piece, steps)(piece, steps)

        return self._timed(step)

    def _trained_s(self, client: int) -> float:
        def train() -> None:
            self._jobs += 1
            job = TrainJob(client, self._work, self._jobs)
            self._worker.handlers[TrainJob](job)

        return self._timed(train)

    def server_s(self) -> float:
        """Sum the rings of all workers, add the mean to the weights, and share them again."""
        size, rings = len(self._state.weights), [self._ring] * self._setup.plan.workers

        def update() -> None:
            total = to_float(sum(rings[1:], start=rings[0]))
            weights = self._state.weights + (total[:size] / 3.0).float()
            self._worker.shared[:size].copy_(weights)

        return self._timed(update)

    def evaluation_s(self) -> float:
        """Seconds for the whole test set, extrapolated from one chunk."""
        test, size = self._setup.test, self._setup.task.eval_batch
        if not test or not self._setup.judged_by_server:
            return 0.0
        chunk: Examples = trees.take(test, slice(0, size))
        return self._timed(lambda: self._trainer.evaluate(chunk)) * len(test) / len(chunk)

    def _timed(self, do: Callable[[], object]) -> float:
        """The median of a few timings, without the first."""
        do()
        found: list[float] = []
        while len(found) < 2 or (sum(found) < REPEAT_S and len(found) < 200):
            began = self._clock()
            do()
            found.append(self._clock() - began)
        return median(found)


def steps_of(n: int, work: Work) -> int:
    return work.epochs * ceil(n / min(work.batch, n))


def peak_of(setup: Setup, trainer: Trainer, rates: MeasuredRates, held: Held) -> float | None:
    """The peak is when the step is recorded, before workers start, or when all have trained and some evaluate.

    Forked workers share what is loaded, and copy the part of the model that they train; others have their own copies.
    """
    if not rates.server_mb:
        return None
    plan, size = setup.plan, len(trainer.weights)
    module, forked = trainer.model.module, method_of(plan) == "fork"
    own = [p for p in module.parameters() if p.requires_grad or not forked]
    model_mb = sum(t.numel() * t.element_size() for t in (*own, *module.buffers())) / 1e6
    shared_mb = (4 * size * setup.algorithm.vectors_down + 8 * setup.update_size(size) * plan.workers) / 1e6
    each_mb = rates.worker_mb + held.training + model_mb
    loaded_mb = held.loaded if forked else 2 * held.loaded  # it is also in the memory that is passed to workers
    evaluating_mb = held.evaluating * min(plan.workers, ceil(len(setup.test or ()) / setup.task.eval_batch))
    server_mb = rates.server_mb + loaded_mb + SERVER_BYTES * size / 1e6
    return max(held.at_start, server_mb + shared_mb + plan.workers * each_mb + evaluating_mb)
