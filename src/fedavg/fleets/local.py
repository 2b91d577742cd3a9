"""The local fleet: clients are simulated by one persistent single-threaded process per core.

Workers are forked from this process once PyTorch, the data and the compiled model are in memory, so they start at
once, share all of it, and a user's own module needs no pickling. Weights and sums lie in shared memory; pipes carry
only small messages. A worker that dies or hangs is replaced and its clients of the round are run again. Since sums are
exact, neither the number of workers nor who does what can change a bit of the result.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from math import fsum
from mmap import mmap
from multiprocessing import get_all_start_methods
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds
from fedavg.codecs import make_codec
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.model import model_sha256
from fedavg.engine.single import check_single
from fedavg.engine.threads import one_thread
from fedavg.errors import PlanError
from fedavg.fleets.fleet import CohortResult, Fleet, join
from fedavg.fleets.pool import Finished, InlinePool, Pool, ProcessPool
from fedavg.fleets.worker import (
    EvalJob,
    Evaluated,
    Trained,
    TrainJob,
    Tuned,
    TuneJob,
    Worker,
    eval_jobs,
    judged_by_clients,
    judged_together,
    judges,
    named_sums,
    unclipped,
)  # fmt: skip
from fedavg.metrics import add_up, report
from fedavg.metrics.spread import OnClients, names_of_sums
from fedavg.metrics.training import sums_over, unmasked_sums
from fedavg.plan import Plan
from fedavg.samplers.cohort import sample_cohort
from fedavg.setup import Setup, check_population, cohort_size, population_of, probed, resolve_data
from fedavg.states import ClientStates
from fedavg.sums import checked_bound, to_float
from fedavg.types import Cohort, Part, Population, Split, Sum, Work

if TYPE_CHECKING:
    from fedavg.secagg.ring import DecodedSum
    from fedavg.secagg.terms import Terms

log = logging.getLogger("fedavg.run")

#: Bytes of one sum of a metric on its way to the server: a float64.
SUM_BYTES: Final = 8


def shared_tensor(size: int, dtype: torch.dtype) -> Tensor:
    """Zeros in anonymous memory that forked processes share; freed with the last of them."""
    buffer = mmap(-1, max(size, 1) * dtype.itemsize)
    return torch.frombuffer(buffer, dtype=dtype, count=size)


class LocalFleet(Fleet):
    """Simulates all clients of a plan on this machine, by as many processes as the plan has workers.

    >>> from fedavg import Plan, train
    >>> [event.round for event in train(Plan(data="mnist", C=0.02, rounds=1, workers=1), LocalFleet())]
    [0, 1]
    """

    def __init__(self) -> None:
        #: Where clients keep what they carry from round to round; None: it is gone at the end.
        self._kept_in: Path | None = None
        self._scratch = ExitStack()
        #: Cohorts so far: each has a sum of its own, and a round may have several.
        self._cohorts = 0

    def open(self, plan: Plan) -> Population:
        self._inline = "fork" not in get_all_start_methods() or plan.device != "cpu"
        if self._inline and plan.worker_timeout is not None:
            raise PlanError(
                f"worker_timeout: got {plan.worker_timeout:g}, but clients run in the server's own process here, "
                "which nobody watches; expected none"
            )
        self._kept_in, self._told_of_capped = None, False
        self._data = resolve_data(plan)
        check_population(plan, self._data)
        self.fingerprint, self.test = self._data.fingerprint, self._data.test
        self._population = population_of(self._data)
        return self._population

    def keep_states_in(self, directory: Path) -> None:
        self._kept_in = directory

    def start(self, setup: Setup) -> Tensor:
        self._setup = setup
        if setup.secagg:
            setup.secagg.check(cohort_size(setup.plan.C, self._population))
        self._states = self._client_states(self._kept_in) if setup.keeps_state else None
        keep_freed_memory()
        self._scratch.enter_context(one_thread())
        first = probed(self._data)
        trainer = setup.new_trainer(first)
        check_single(trainer, first, self._data.sizes, setup.plan)
        self.engine = trainer.engine
        initial = trainer.weights.clone()
        size, count = len(initial), 1 if self._inline else setup.plan.workers
        self._shared = shared_tensor(size * setup.algorithm.vectors_down, torch.float32)
        self._rings = [shared_tensor(setup.update_size(size), torch.int64) for _ in range(count)]
        workers = [Worker(setup, self._data, trainer, self._shared, ring, self._states) for ring in self._rings]
        self._pool: Pool = InlinePool(workers[0]) if self._inline else ProcessPool(setup, self._data, workers)
        self._scratch.callback(self._pool.close)
        return initial

    @property
    def worker_pids(self) -> list[int]:
        """Of the processes that run clients, from `start` on; none where they run in this one."""
        return self._pool.pids

    def close(self) -> None:
        self._scratch.close()

    def _client_states(self, directory: Path | None) -> ClientStates:
        return ClientStates(directory or Path(self._scratch.enter_context(TemporaryDirectory(prefix="fedavg-"))))

    def draw(self, round: int, weights: Tensor) -> Cohort:
        asked: list[int] = []

        def losses(clients: Sequence[int]) -> np.ndarray:
            asked.extend(clients)
            return self._losses(weights, clients)

        cohort = sample_cohort(self._setup.plan, self._population, round, losses=losses)
        # Who is chosen has the model already, and fetches it only once.
        down = make_codec("float32").max_bytes(len(weights)) * len(set(asked) - set(cohort))
        return Cohort(cohort, self._population.count, SUM_BYTES * len(asked), down)

    def _losses(self, weights: Tensor, clients: Sequence[int]) -> np.ndarray:
        """The mean loss of each client on what it trains on, shape (len(clients),)."""
        self._shared[: len(weights)].copy_(weights)
        metrics, results = self._setup.task.judged_by, self._pool.run([EvalJob("train", k) for k in clients]).results
        return np.array([report(metrics, add_up([r.sums]))["loss"] for r in results if isinstance(r, Evaluated)])

    def train(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult:
        if self._states and self._kept_in is None:  # there is no checkpoint to go back to
            self._states.settle(work.round - 1)
        results = []
        for part in parts:
            self._shared.copy_(part.shared)
            self._cohorts += 1
            # Largest clients first, so that no worker is left with a large one at the end.
            order = sorted(part.cohort, key=lambda k: (-int(self._data.sizes[k]), k))
            terms = self._terms(part, work)
            encoding = terms.encoding if terms else None
            finished = self._pool.run([TrainJob(k, work, self._cohorts, encoding) for k in order])
            results.append(self._unmasked(order, finished, terms) if terms else self._added(part, finished, work))
        return join(results, [part.scale for part in parts])

    def _added(self, part: Part, finished: Finished, work: Work) -> CohortResult:
        """The sum over a part's clients."""
        trained = [result for result in finished.results if isinstance(result, Trained)]
        measured = sums_over(self._setup.measures, trained)
        total = Sum(self._sum(finished), fsum(t.weight for t in trained), len(trained), measured)
        down = make_codec("float32").encode(part.shared, self._rng(work, "codec"))
        sent = [t.bytes_up for t in trained]
        return CohortResult(total, sum(sent), max(sent, default=0), len(down) * len(part.cohort))

    def _terms(self, part: Part, work: Work) -> "Terms | None":
        """The terms of a part's session of secure aggregation; None where there is none."""
        masking, size = self._setup.secagg, len(self._rings[0])
        if not masking:
            return None
        model = model_sha256(part.shared)
        return masking.terms(token_bytes(16), work.round, model, len(part.cohort), size, self._setup.metrics)

    def _unmasked(self, cohort: list[int], finished: Finished, terms: "Terms") -> CohortResult:
        """The same sum by secure aggregation: the whole session runs here, through the bytes that would travel."""
        from fedavg.secagg.simulate import simulate

        rings = {k: t.ring for k, t in zip(cohort, finished.results, strict=True) if isinstance(t, Trained)}
        outcome = simulate(terms, cohort, lambda k: np.frombuffer(rings[k], terms.encoding.dtype))
        decoded = terms.encoding.decode(outcome.aggregate.ring, len(outcome.aggregate.survivors))
        self._tell_of_capped(decoded, terms.encoding.weight_cap)
        measured = unmasked_sums(self._setup.measures, decoded)
        total = Sum(torch.from_numpy(decoded.vector), decoded.weight, decoded.count, measured)
        costs = outcome.clients.values()
        down = sum(cost.bytes_down for cost in costs) + len(cohort) * make_codec("float32").max_bytes(len(self._shared))
        up = [cost.bytes_up for cost in costs]
        return CohortResult(total, sum(up), max(up), down, decoded.saturated)

    def _tell_of_capped(self, decoded: "DecodedSum", cap: float) -> None:
        """Once for a run: from then on the mean over clients is another than the plan's weights would give."""
        if decoded.capped and not self._told_of_capped:
            self._told_of_capped = True
            log.warning(
                "%d of %d clients have more weight than secure aggregation can count, and count for %g; to count them "
                "in full, raise CAP of secagg = METHOD:CLIP:CAP",
                decoded.capped, decoded.count, cap,
            )  # fmt: skip

    def evaluate(self, weights: Tensor, on: Split) -> dict[str, float]:
        self._shared[: len(weights)].copy_(weights)
        results = self._pool.run(eval_jobs(self._setup, self._data, on)).results
        pieces = [result.sums for result in results if isinstance(result, Evaluated)]
        return report(self._setup.task.judged_by, add_up(pieces))

    def evaluate_on_clients(self, weights: Tensor, round: int) -> OnClients:
        self._shared[: len(weights)].copy_(weights)
        clients = judges(self._setup, round, np.flatnonzero(self._data.held_sizes))
        results = self._pool.run([EvalJob("held", k) for k in clients]).results
        pieces = [result for result in results if isinstance(result, Evaluated)]
        down = len(clients) * make_codec("float32").max_bytes(len(weights))
        metrics = self._setup.task.judged_by
        if self._setup.secagg:
            return self._judged_masked(dict(zip(clients, pieces, strict=True)), weights, round, down)
        sent = len(clients) * SUM_BYTES * sum(metric.size for metric in metrics.values())
        return judged_by_clients(metrics, pieces, sent, down)

    def _judged_masked(self, pieces: dict[int, Evaluated], weights: Tensor, round: int, down: int) -> OnClients:
        """The sums of all clients together, through a session of their own: nobody sees one client's."""
        from fedavg.secagg.simulate import simulate

        metrics, masking = self._setup.task.judged_by, self._setup.secagg
        assert masking
        terms = masking.terms(token_bytes(16), round, model_sha256(weights), len(pieces), 0, names_of_sums(metrics))
        rings = {k: terms.encoding.encode(np.empty(0), 1.0, named_sums(piece)).ring for k, piece in pieces.items()}
        outcome = simulate(terms, list(pieces), lambda k: rings[k])
        decoded = terms.encoding.decode(outcome.aggregate.ring, len(outcome.aggregate.survivors))
        costs = outcome.clients.values()
        up, down = sum(cost.bytes_up for cost in costs), down + sum(cost.bytes_down for cost in costs)
        return judged_together(metrics, unclipped(decoded), decoded.count, up, down)

    def fine_tune(self, weights: Tensor, jobs: Sequence[TuneJob]) -> list[Tuned]:
        """Have clients train the shared model further for themselves; the results in the order of the jobs."""
        self._shared[: len(weights)].copy_(weights)
        return [result for result in self._pool.run(list(jobs)).results if isinstance(result, Tuned)]

    def _sum(self, finished: Finished) -> Tensor:
        """The sum over the rings of the workers that took part."""
        used = [slot for slot, jobs in finished.by_slot.items() if jobs]
        bound = 0
        for slot in used:
            results = [finished.results[job] for job in finished.by_slot[slot]]
            bound = checked_bound(bound, max(result.bound for result in results if isinstance(result, Trained)))
        if not used:  # nobody was picked
            return torch.zeros(len(self._rings[0]), dtype=torch.float64)
        first, *others = (self._rings[slot] for slot in used)
        return to_float(sum(others, start=first))

    def _rng(self, work: Work, purpose: str) -> np.random.Generator:
        return seeds.rng(self._setup.plan.seed, work.round, seeds.NONE, purpose)
