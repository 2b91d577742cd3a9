"""Turns the names of a plan into objects, and refuses what does not fit, before round 1."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedavg import seeds
from fedavg.algorithms import Algorithm, make_algorithm
from fedavg.codecs import Codec, make_codec
from fedavg.data import HeldOut, is_named, load, pooled
from fedavg.downlink import Downlink
from fedavg.engine.model import Model
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, PlanError
from fedavg.plan import Plan
from fedavg.privacy.ledger import Budget, budget_of
from fedavg.privacy.pairs import check_pairs
from fedavg.privacy.shares import bind_shares
from fedavg.specs import make
from fedavg.stages import Stage, make_stage
from fedavg.stages.noise import Noise
from fedavg.tasks import Task
from fedavg.types import Examples, FederatedData, Update, Work

if TYPE_CHECKING:  # secure aggregation needs `cryptography`, which a plain simulation does not
    from fedavg.secagg.options import Masking


@dataclass(frozen=True)
class Setup:
    """A plan with everything it names. Read-only: workers share it."""

    plan: Plan
    task: Task
    data: FederatedData
    algorithm: Algorithm
    codec: Codec
    stages: tuple[Stage, ...]
    #: How the server's change is sent; None: clients fetch all that is shared, each time.
    downlink: Downlink | None = None
    #: How updates are masked, so that the server sees only their sum; None: they are not.
    secagg: "Masking | None" = None
    #: What the rounds cost in privacy; None for a run that is not differentially private.
    budget: Budget | None = None

    @property
    def eligible(self) -> np.ndarray:
        """The clients that have data: a client without any is never picked."""
        return np.flatnonzero(self.data.sizes)

    @property
    def cohort_size(self) -> int:
        """m = max(C K, 1), at most as many as have data."""
        return min(max(round(self.plan.C * len(self.data)), 1), len(self.eligible))

    @property
    def metrics(self) -> frozenset[str]:
        """The names of the metrics that come with every update."""
        hidden = any(stage.hides_metrics for stage in self.stages)
        return frozenset() if hidden else frozenset(self.algorithm.metrics)

    @property
    def keeps_state(self) -> bool:
        """True if clients keep anything between rounds."""
        return self.algorithm.keeps_state or self.codec.keeps_residual

    @property
    def noise_multiplier(self) -> float:
        """z, the noise on the sum over what one client can change it by; 0 if there is none."""
        return next((stage.multiplier for stage in self.stages if isinstance(stage, Noise)), 0.0)

    def update_size(self, parameters: int) -> int:
        """How many numbers an update has: the algorithm's vectors, and what stages append."""
        return parameters * self.algorithm.vectors_up + sum(stage.appends for stage in self.stages)

    def stage_rng(self, round: int, client: int, index: int) -> np.random.Generator:
        """What the index-th stage draws from: the seed's numbers, or such as nobody can know."""
        if self.plan.noise_source == "os":
            return seeds.fresh_rng()
        return seeds.rng(self.plan.seed, round, client, f"stage {index}")

    def arrived(self, vector: Tensor, weight: float, work: Work) -> Update:
        """An update as the server counts it: stages keep their bounds on what arrives, for a client may lie."""
        update = Update(vector, weight)
        for stage in self.stages:
            update = stage.on_arrival(update, work)
        return update

    def new_trainer(self) -> Trainer:
        """A trainer with initial weights, its engine chosen and proved on the first client that has data."""
        trainer = Trainer(self.task, self.plan.seed, self.plan.device)
        first = self.data.client(int(self.eligible[0]))
        batch = int(min(self.plan.work(1).batch, len(first)))
        rng = seeds.rng(self.plan.seed, seeds.NONE, seeds.NONE, "probe")
        trainer.choose_engine(self.plan.engine, trainer.inputs(first.x[:batch], rng), first.y[:batch])
        trainer.evaluate(Examples(self.data.test.x[:2], self.data.test.y[:2]))  # a metric that fails should fail now
        return trainer


def resolve(plan: Plan) -> Setup:
    algorithm = make_algorithm(plan.algorithm)
    algorithm.check(plan)
    _check_device(plan.device)
    stages = tuple(make_stage(text) for text in plan.stages)
    task = resolve_task(plan)
    data = resolve_data(plan)
    if not data.sizes.any():
        raise DataError(f"data '{data.name}': no client has any example; expected at least one")
    data = pooled(data) if algorithm.pools_data else data
    if plan.target and "accuracy" not in task.judged_by:
        raise PlanError(f"target: task '{task.name}' has no metric 'accuracy'; expected one, or no target")
    codec = _bound(plan.codec, task, algorithm.vectors_up)
    downlink = _resolve_downlink(plan, task, algorithm)
    setup = Setup(plan, task, data, algorithm, codec, stages, downlink, _resolve_secagg(plan))
    check_pairs(setup)
    setup = replace(setup, stages=tuple(stage.bind(setup) for stage in stages))
    return replace(bind_shares(setup), budget=budget_of(setup))


def _resolve_secagg(plan: Plan) -> "Masking | None":
    if plan.secagg == "none":
        return None
    from fedavg.secagg.options import make_masking

    return make_masking(plan.secagg)


def resolve_task(plan: Plan) -> Task:
    return make(plan.task, Task)


def _bound(value: str | Codec, task: Task, vectors: int) -> Codec:
    """A codec for so many vectors of the task's model, end to end."""
    return make_codec(value).bind(lambda: [tuple(slot.shape) for slot in Model(task, 0).slots] * vectors)


def _resolve_downlink(plan: Plan, task: Task, algorithm: Algorithm) -> Downlink | None:
    if plan.downlink == "float32":
        return None
    if algorithm.asynchronous:
        raise PlanError(f"downlink: got '{plan.downlink}' with algorithm '{plan.algorithm}'; expected 'float32'")
    if algorithm.vectors_down != 1:
        raise PlanError(
            f"downlink: got '{plan.downlink}' with algorithm '{plan.algorithm}', which shares "
            f"{algorithm.vectors_down} vectors; only weights can be compressed: expected downlink 'float32'"
        )
    return Downlink(_bound(plan.downlink, task, 1), plan.seed)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # PyTorch's words tell of its own insides
        raise PlanError(f"device: got '{device}', which is not at hand here; expected 'cpu', or 'cuda'") from error


def resolve_data(plan: Plan) -> FederatedData:
    """What clients train on: the plan's data, without what it holds out."""
    data = _whole_data(plan)
    return HeldOut(data, plan.holdout, plan.seed) if plan.holdout else data


def check_population(setup: Setup) -> None:
    """Where all clients are simulated, there are as many as the data has."""
    wanted, have = setup.plan.clients, len(setup.data)
    if wanted not in (None, have) and not setup.algorithm.pools_data:
        raise PlanError(
            f"clients: got {wanted} with data '{setup.data.name}', which has {have} clients of its own; "
            f"leave it out, or ask for {have}"
        )


def _whole_data(plan: Plan) -> FederatedData:
    if not (isinstance(plan.data, str) and is_named(plan.data)):
        return make(plan.data, FederatedData)  # type: ignore[type-abstract]
    data_dir = Path(plan.data_dir) if plan.data_dir else None
    return load(plan.data, plan.partition, plan.clients, plan.seed, data_dir)
