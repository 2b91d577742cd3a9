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
from fedavg.data.finite import check_finite
from fedavg.downlink import Downlink
from fedavg.engine.model import Model
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, PlanError
from fedavg.metrics import Metric, by_name
from fedavg.metrics.goal import Goal, make_goal
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
    def algorithm_metrics(self) -> frozenset[str]:
        """What an algorithm measures of its own, beside the training loss."""
        return self.metrics - {"train_loss"}

    @property
    def judged_by_server(self) -> bool:
        """True if the model is judged on the server's own test set."""
        return bool(self.data.test) if self.plan.evaluate == "auto" else "server" in self.plan.evaluate

    @property
    def judged_by_clients(self) -> bool:
        """True if the model is judged by clients, on what they hold out."""
        if self.plan.evaluate != "auto":
            return "clients" in self.plan.evaluate
        return not self.data.test and bool(self.data.held_sizes.any())

    @property
    def goal(self) -> Goal:
        """What the run is watched by, and when it may stop."""
        return make_goal(self.plan.target, self.plan.patience, self.task.judged_by)

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
        self._probe_metrics(trainer)
        return trainer

    def _probe_metrics(self, trainer: Trainer) -> None:
        """A metric that fails should fail now."""
        test = self.data.test
        if self.judged_by_server and test:
            check_finite(test, f"the test set of '{self.data.name}'")
            trainer.evaluate(Examples(test.x[:2], test.y[:2]))
        elif self.judged_by_clients:
            first = self.data.held(int(np.flatnonzero(self.data.held_sizes)[0]))
            trainer.evaluate(Examples(first.x[:2], first.y[:2]))


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
    codec = _bound(plan.codec, task, algorithm.vectors_up)
    downlink = _resolve_downlink(plan, task, algorithm)
    setup = Setup(plan, task, data, algorithm, codec, stages, downlink, _resolve_secagg(plan))
    check_pairs(setup)
    _check_evaluation(setup)
    setup = replace(setup, stages=tuple(stage.bind(setup) for stage in stages))
    return replace(bind_shares(setup), budget=budget_of(setup))


def _check_evaluation(setup: Setup) -> None:
    """Refuse an evaluation that nobody can do, and options that would have no effect."""
    plan, goal = setup.plan, setup.goal
    if "server" in plan.evaluate and not setup.data.test:
        raise PlanError(f"evaluate: got '{plan.evaluate}', but '{setup.data.name}' has no test set; expected one, "
                        "or evaluate 'clients' with a holdout, or 'none'")  # fmt: skip
    if "clients" in plan.evaluate and not setup.data.held_sizes.any():
        raise PlanError(f"evaluate: got '{plan.evaluate}', but no client holds examples out; set holdout, as in 0.2, "
                        "large enough that clients of 2 or more examples have some")  # fmt: skip
    judged = setup.judged_by_server or setup.judged_by_clients
    for name in ("target", "patience"):
        if getattr(goal, name) is not None and not judged:
            raise PlanError(f"{name}: got {getattr(plan, name)}, but nothing is evaluated; expected a test set, or a "
                            "holdout that clients judge on")  # fmt: skip
    if plan.eval_clients is not None and not setup.judged_by_clients:
        raise PlanError(f"eval_clients: got {plan.eval_clients}, but no client judges the model; expected evaluate "
                        "'clients' or 'server,clients' too")  # fmt: skip
    if setup.judged_by_clients and setup.secagg:
        able = int(np.count_nonzero(setup.data.held_sizes))
        setup.secagg.check(min(plan.eval_clients or able, able))


def _resolve_secagg(plan: Plan) -> "Masking | None":
    if plan.secagg == "none":
        return None
    from fedavg.secagg.options import make_masking

    return make_masking(plan.secagg)


def resolve_task(plan: Plan) -> Task:
    """The task, with the metrics that the plan adds to its own."""
    task = make(plan.task, Task)
    if not plan.metrics:
        return task
    metrics: dict[str, Metric] = {**task.judged_by, **by_name(plan.metrics, task.loss)}
    return replace(task, metrics=metrics)


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
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise PlanError(f"device: got '{device}', which this machine does not have ({reason}); use 'cpu'") from None


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
