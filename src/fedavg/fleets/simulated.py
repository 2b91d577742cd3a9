"""A fleet that simulates all clients of a plan: it draws cohorts, makes jobs for a pool of workers, and sums results.

It does not know where the workers are: on this machine (`local.py`), or on a cluster (`ray/`). Since sums are exact,
neither the number of workers nor who does what can change a bit of the result.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import fsum
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds
from fedavg.codecs import make_codec
from fedavg.cohorts import Among, cohort_size, sample_cohort
from fedavg.engine.memory import keep_freed_memory, let_go_of_cycles, let_go_of_start_up
from fedavg.engine.model import model_sha256
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError
from fedavg.fleets.attendance import Attendance
from fedavg.fleets.fleet import CohortResult, Fleet, join
from fedavg.fleets.pool import Finished, WorkerPool
from fedavg.fleets.worker import (
    EvalJob,
    Evaluated,
    Trained,
    TrainJob,
    Tuned,
    TuneJob,
    eval_jobs,
    judged_by_clients,
    judged_together,
    judges,
    named_sums,
    unclipped,
)  # fmt: skip
from fedavg.machine import memory_bytes
from fedavg.metrics import add_up, report
from fedavg.metrics.spread import OnClients, names_of_sums
from fedavg.metrics.training import sums_over, unmasked_sums
from fedavg.plan import Plan
from fedavg.recent import RecentStates
from fedavg.setup import Setup, check_population, population_of, proved_trainer, resolve_data
from fedavg.states import ClientStates
from fedavg.sums import to_float
from fedavg.types import Cohort, FederatedData, Part, Population, Split, Sum, Update, Work
from fedavg.world import make_world

if TYPE_CHECKING:
    from fedavg.secagg.ring import DecodedSum
    from fedavg.secagg.terms import Terms

log = logging.getLogger("fedavg.run")

#: Bytes of one sum of a metric as sent to the server: a float64.
SUM_BYTES: Final = 8
#: Memory for what clients have kept since the last checkpoint, or an eighth of free memory if that is less.
MOST_RECENT_BYTES: Final = 512 << 20


class SimulatedFleet(Fleet, ABC):
    """Simulates all clients of a plan by a pool of workers, wherever those are."""

    simulates = True
    gives_singles = True

    def __init__(self) -> None:
        #: Where clients keep what they carry from round to round; None: it is discarded at the end.
        self._kept_in: Path | None = None
        self._states: ClientStates | None = None
        self._scratch = ExitStack()
        #: Cohorts so far: each has a sum of its own, and a round may have several.
        self._cohorts = 0
        #: The round under way.
        self._round = 1

    def open(self, plan: Plan) -> Population:
        self.check(plan)
        let_go_of_start_up()
        self._kept_in, self._told_of_capped = None, False
        self._data = resolve_data(plan)
        check_population(plan, self._data)
        self.fingerprint, self.test = self._data.fingerprint, self._data.test
        self._population = population_of(self._data)
        return self._population

    @abstractmethod
    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot run on this fleet."""

    def keep_states_in(self, directory: Path) -> None:
        self._kept_in = directory

    def start(self, setup: Setup) -> Tensor:
        self._setup = setup
        if setup.secagg:
            setup.secagg.check(cohort_size(setup.plan.C, self._population))
        self._states = self._client_states(self._kept_in) if setup.keeps_state else None
        keep_freed_memory()
        self._scratch.enter_context(one_thread())
        trainer = proved_trainer(setup, self._data)
        self.engine, self.frozen = trainer.engine, trainer.model.frozen.fingerprint
        initial = trainer.weights.clone()
        self._update_size = setup.update_size(len(initial))
        self._pool = self.new_pool(setup, self._data, trainer, self._states)
        self._scratch.callback(self._pool.close)
        del trainer
        if self.frozen:
            let_go_of_cycles()  # of the frozen weights that were built here, if the workers have them elsewhere
        return initial

    @abstractmethod
    def new_pool(self, setup: Setup, data: FederatedData, trainer: Trainer, states: ClientStates | None) -> WorkerPool:
        """The workers. The trainer is verified, and has the initial weights."""

    @property
    def worker_pids(self) -> list[int]:
        """The ids of the processes that run clients, from `start` on; empty if clients run in this process."""
        return self._pool.pids

    def close(self) -> None:
        self._scratch.close()

    def flush_states(self) -> None:
        if self._states:
            self._states.flush()

    def _client_states(self, directory: Path | None) -> ClientStates:
        """Created before the workers, so that forked workers share its memory; others use its files."""
        root = directory or Path(self._scratch.enter_context(TemporaryDirectory(prefix="fedavg-")))
        budget = int(min(MOST_RECENT_BYTES, memory_bytes()[1] / 8))
        states = ClientStates(root, recent=RecentStates.within(budget, self._population.count))
        if directory is None:
            states.flush()  # it is still empty, and no run will resume from it
        return states

    def draw(self, round: int, weights: Tensor) -> Cohort:
        population = self.population_at(round)
        return self.draw_among(round, weights, Among(population, cohort_size(self._setup.plan.C, population)))

    def population_at(self, round: int) -> Population:
        data = self._data.at(round)
        if data is self._data:
            return self._population
        if not data.sizes.any():
            raise DataError(f"in round {round} no client has any example left; expected fewer rounds or deletions")
        return population_of(data)

    def draw_among(self, round: int, weights: Tensor, among: Among) -> Cohort:
        asked: list[int] = []
        self._round = round

        def losses(clients: Sequence[int]) -> np.ndarray:
            asked.extend(clients)
            return self._losses(weights, clients)

        cohort = sample_cohort(self._setup.plan, among.clients, round, among.attempt, losses, among.size, among.memory)
        # The chosen clients have the model already, and fetch it only once.
        down = make_codec("float32").max_bytes(len(weights)) * len(set(asked) - set(cohort))
        return Cohort(cohort, self._population.count, SUM_BYTES * len(asked), down)

    def _losses(self, weights: Tensor, clients: Sequence[int]) -> np.ndarray:
        """The mean loss of each client on its training examples, shape (len(clients),)."""
        self._pool.share(weights)
        metrics, results = (
            self._setup.task.judged_by,
            self._pool.run([EvalJob("train", k, self._round) for k in clients]).results,
        )
        return np.array([report(metrics, add_up([r.sums]))["loss"] for r in results if isinstance(r, Evaluated)])

    def train(self, cohort: Cohort, work: Work, parts: Sequence[Part]) -> CohortResult:
        if self._states and self._kept_in is None:  # there is no checkpoint to go back to
            self._states.settle(work.round - 1)
        results, sizes = [], self._data.at(work.round).sizes
        for part in parts:
            self._pool.share(part.shared)
            self._cohorts += 1
            # Largest clients first, so that no worker is left with a large one at the end.
            order = sorted(part.cohort, key=lambda k: (-int(sizes[k]), k))
            terms = self._terms(part, work)
            encoding = terms.encoding if terms else None
            finished = self._pool.run([TrainJob(k, work, self._cohorts, encoding) for k in order])
            result = self._unmasked(part, order, finished, terms) if terms else self._added(part, order, finished, work)
            results.append(replace(result, singles=_singles(order, finished)) if self._setup.single_updates else result)
        return join(results, [part.scale for part in parts])

    def _added(self, part: Part, cohort: list[int], finished: Finished, work: Work) -> CohortResult:
        """The sum over a part's clients."""
        seen = {k: t.seen for k, t in zip(cohort, finished.results, strict=True) if isinstance(t, Trained) and t.seen}
        trained = [result for result in finished.results if isinstance(result, Trained)]
        vector = to_float(finished.ring) if finished.ring is not None else self._nothing()
        total = Sum(
            vector, fsum(t.weight for t in trained), len(trained), sums=sums_over(self._setup.measures, trained)
        )
        down = make_codec("float32").encode(part.shared, self._rng(work, "codec"))
        sent = [t.bytes_up for t in trained]
        told = zip(cohort, trained, strict=True) if self._setup.remembers else ()
        losses = {k: t.metrics["train_loss"] for k, t in told if "train_loss" in t.metrics}
        there = Attendance(len(cohort), seen, staleness={part.staleness: len(trained)})
        down_bytes = len(down) * len(part.cohort)
        return CohortResult(total, sum(sent), max(sent, default=0), down_bytes, losses=losses, attendance=there)

    def _nothing(self) -> Tensor:
        """The sum over no clients."""
        return torch.zeros(self._update_size, dtype=torch.float64)

    def _terms(self, part: Part, work: Work) -> "Terms | None":
        """The terms of a part's session of secure aggregation; None if the plan has none."""
        masking, size = self._setup.secagg, self._update_size
        if not masking:
            return None
        model = model_sha256(part.shared)
        return masking.terms(token_bytes(16), work.round, model, len(part.cohort), size, self._setup.metrics)

    def _unmasked(self, part: Part, cohort: list[int], finished: Finished, terms: "Terms") -> CohortResult:
        """The same sum by secure aggregation: the whole session runs here, through the bytes that would be sent."""
        from fedavg.secagg.simulate import simulate

        rings = {k: t.ring for k, t in zip(cohort, finished.results, strict=True) if isinstance(t, Trained)}
        outcome = simulate(terms, cohort, lambda k: np.frombuffer(rings[k], terms.encoding.dtype))
        decoded = terms.encoding.decode(outcome.aggregate.ring, len(outcome.aggregate.survivors))
        self._tell_of_capped(decoded, terms.encoding.weight_cap)
        measured = unmasked_sums(self._setup.measures, decoded)
        total = Sum(torch.from_numpy(decoded.vector), decoded.weight, decoded.count, sums=measured)
        costs = outcome.clients.values()
        down = sum(cost.bytes_down for cost in costs) + len(cohort) * make_codec("float32").max_bytes(len(part.shared))
        up = [cost.bytes_up for cost in costs]
        there = Attendance(len(cohort), survivors=len(outcome.aggregate.survivors), threshold=terms.threshold)
        return CohortResult(total, sum(up), max(up), down, decoded.saturated, attendance=there)

    def _tell_of_capped(self, decoded: "DecodedSum", cap: float) -> None:
        """Warn once per run: from then on the mean over clients differs from the mean by the plan's weights."""
        if decoded.capped and not self._told_of_capped:
            self._told_of_capped = True
            log.warning(
                "%d of %d clients have more weight than secure aggregation can count, and count for %g; to count them "
                "in full, raise CAP of secagg = METHOD:CLIP:CAP",
                decoded.capped, decoded.count, cap,
            )  # fmt: skip

    def evaluate(self, weights: Tensor, on: Split) -> dict[str, float]:
        self._pool.share(weights)
        results = self._pool.run(eval_jobs(self._setup, self._data, on, self._round)).results
        pieces = [result.sums for result in results if isinstance(result, Evaluated)]
        return report(self._setup.task.judged_by, add_up(pieces))

    def evaluate_on_clients(self, weights: Tensor, round: int) -> OnClients:
        self._pool.share(weights)
        clients = judges(self._setup, round, np.flatnonzero(self._data.held_sizes))
        results = self._pool.run([EvalJob("held", k, round) for k in clients]).results
        pieces = [result for result in results if isinstance(result, Evaluated)]
        down = len(clients) * make_codec("float32").max_bytes(len(weights))
        metrics = self._setup.task.judged_by
        if self._setup.secagg:
            return self._judged_masked(dict(zip(clients, pieces, strict=True)), weights, round, down)
        sent = len(clients) * SUM_BYTES * sum(metric.size for metric in metrics.values())
        named = clients if self._setup.shows_updates else ()
        return judged_by_clients(metrics, pieces, sent, down, named, self._groups(clients))

    def _groups(self, clients: Sequence[int]) -> list[int]:
        """The group of each client in the plan's world; empty without a world, or if it has only one group."""
        world = self._setup.plan.world
        groups = make_world(world).groups(self._population.count) if world is not None else np.zeros(1, np.int64)
        return groups[list(clients)].tolist() if groups.any() else []

    def _judged_masked(self, pieces: dict[int, Evaluated], weights: Tensor, round: int, down: int) -> OnClients:
        """The sums of all clients together, through a separate session: nobody sees one client's sums."""
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
        """Have clients train the shared model further for themselves; returns the results in the order of the jobs."""
        self._pool.share(weights)
        return [result for result in self._pool.run(list(jobs)).results if isinstance(result, Tuned)]

    def _rng(self, work: Work, purpose: str) -> np.random.Generator:
        return seeds.rng(self._setup.plan.seed, work.round, seeds.NONE, purpose)


def _singles(clients: Sequence[int], finished: Finished) -> dict[int, Update]:
    """The updates of the clients as received, without a copy."""
    trained = zip(clients, finished.results, strict=True)
    return {
        k: Update(torch.frombuffer(t.single, dtype=torch.float32), t.weight)
        for k, t in trained
        if isinstance(t, Trained)
    }
