"""Turns the names of a plan into objects, and refuses what does not fit, before round 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedavg import seeds, trees
from fedavg.algorithms import Algorithm, make_algorithm
from fedavg.codecs import Codec, make_codec
from fedavg.codecs.downlink import Downlink
from fedavg.data import HeldOut, is_named, load, pooled
from fedavg.data.changes import Changes, ChangingData
from fedavg.data.finite import check_finite
from fedavg.engine.model import Model
from fedavg.engine.ready import make_ready
from fedavg.engine.single import check_single
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, PlanError
from fedavg.metrics import Measure, Metric, by_name
from fedavg.metrics.goal import Goal, make_goal
from fedavg.metrics.rows import CLIENTS, TRAINING
from fedavg.metrics.training import measures_by_name, names_sent
from fedavg.optimizers import make_optimizer
from fedavg.plan import Plan
from fedavg.privacy.ledger import Budget, budget_of
from fedavg.privacy.pairs import check_pairs
from fedavg.privacy.shares import bind_shares
from fedavg.samplers import Sampler, make_sampler
from fedavg.specs import make
from fedavg.stages import Stage, make_stage
from fedavg.stages.stage import Mechanism
from fedavg.tasks import Task
from fedavg.types import Examples, FederatedData, Population, Update, Work
from fedavg.world.fit import check_world

if TYPE_CHECKING:  # secure aggregation needs `cryptography`, which a plain simulation does not
    from fedavg.secagg.options import Masking


@dataclass(frozen=True)
class Draft:
    """The parts of a plan before they know of each other: what a part is bound to."""

    plan: Plan
    task: Task
    algorithm: Algorithm
    codec: Codec
    stages: tuple[Stage, ...]
    #: Who is asked in a round.
    sampler: Sampler
    secagg: "Masking | None"
    #: Who the clients are; None where whoever comes takes part, so that nobody knows how many there will be.
    population: Population | None
    #: What the server judges models on; None where it has nothing.
    test: Examples | None

    @property
    def judged_by_server(self) -> bool:
        """True if the model is judged on the server's own test set."""
        return bool(self.test) if self.plan.evaluate == "auto" else "server" in self.plan.evaluate

    @property
    def judged_by_clients(self) -> bool:
        """True if the model is judged by clients, on what they hold out."""
        if self.plan.evaluate != "auto":
            return "clients" in self.plan.evaluate
        return not self.test and self.holds_out

    @property
    def holds_out(self) -> bool:
        """True if some client holds examples out of training, as far as is known."""
        if self.population is None or self.population.held_sizes is None:
            return self.plan.holdout > 0
        return bool(self.population.held_sizes.any())

    @property
    def clients(self) -> Population:
        """Who the clients are, for a part that can not do without."""
        if self.population is None:
            raise PlanError("clients: the plan's stages need K, the number of clients; got none")
        return self.population

    @property
    def cohort_size(self) -> int:
        return cohort_size(self.plan.C, self.clients)

    def update_size(self, parameters: int) -> int:
        return update_size(self.algorithm, self.stages, parameters)

    @property
    def mechanism(self) -> Mechanism | None:
        """What makes the run private; None if nothing does."""
        return next((stage.mechanism for stage in self.stages if stage.mechanism), None)

    @property
    def noise_multiplier(self) -> float:
        """z, the noise on the sum over what one client can change it by; 0 if there is none."""
        return self.mechanism.multiplier if self.mechanism and self.mechanism.by != "each" else 0.0


@dataclass(frozen=True)
class Setup:
    """A plan with everything it names, each part bound to the others. Read-only: workers share it.

    It holds no examples: those are with the clients, wherever a fleet has them.
    """

    plan: Plan
    task: Task
    algorithm: Algorithm
    codec: Codec
    stages: tuple[Stage, ...]
    population: Population | None
    #: What the server judges models on; None where it has nothing.
    test: Examples | None
    #: How the server's change is sent; None: clients fetch all that is shared, each time.
    downlink: Downlink | None
    #: How updates are masked, so that the server sees only their sum; None: they are not.
    secagg: "Masking | None"
    #: What the rounds cost in privacy; None for a run that is not differentially private.
    budget: Budget | None
    #: Who judges the model: the server on its test set, clients on what they hold out, both or nobody.
    judged_by_server: bool
    judged_by_clients: bool
    #: True if the sampler looks at what earlier rounds showed of clients.
    remembers: bool = False

    @property
    def algorithm_measures(self) -> Mapping[str, Measure]:
        """What clients measure in training, by name."""
        return measures_by_name(self.algorithm.metrics)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What of it leaves them: nothing, if a stage has it so."""
        return {} if any(stage.hides_metrics for stage in self.stages) else self.algorithm_measures

    @property
    def metrics(self) -> frozenset[str]:
        """The names of the numbers that come with every update."""
        return frozenset(names_sent(self.measures))

    @property
    def shows_updates(self) -> bool:
        """True if the server may look at what single clients send: neither masked nor under differential privacy."""
        hidden = any(stage.hides_metrics for stage in self.stages)
        return not hidden and self.secagg is None and self.budget is None

    @property
    def goal(self) -> Goal:
        """What the run is watched by, and when it may stop."""
        return goal_of(self.plan, self.task)

    @property
    def keeps_state(self) -> bool:
        """True if clients keep anything between rounds."""
        return self.algorithm.keeps_state or self.codec.keeps_residual or make_optimizer(self.plan.optimizer).keep

    def update_size(self, parameters: int) -> int:
        return update_size(self.algorithm, self.stages, parameters)

    def stage_rng(self, round: int, client: int, index: int) -> np.random.Generator:
        """What the index-th stage draws from: the seed's numbers, or the system's entropy."""
        if self.plan.noise_source == "os":
            return seeds.fresh_rng()
        return seeds.rng(self.plan.seed, round, client, f"stage {index}")

    def arrived(self, vector: Tensor, weight: float, work: Work) -> Update:
        """An update as the server counts it: stages keep their bounds on what arrives, for a client may lie."""
        update = Update(vector, weight)
        for stage in self.stages:
            update = stage.on_arrival(update, work)
        return update

    def new_trainer(self, examples: Examples) -> Trainer:
        """A trainer with initial weights, its engine chosen and proved on a client's examples and the test set."""
        trainer = Trainer(self.task, self.plan.seed, self.plan.device, make_optimizer(self.plan.optimizer))
        batch = int(min(self.plan.work(1).batch, len(examples)))
        trainer.choose_engine(self.plan.engine, trees.take(examples, slice(0, batch)))
        self._probe_metrics(trainer, examples)
        return trainer

    def _probe_metrics(self, trainer: Trainer, examples: Examples) -> None:
        """A metric that fails should fail now."""
        if self.judged_by_server and self.test:
            check_finite(self.test, "the test set")
            trainer.evaluate(trees.take(self.test, slice(0, 2)))
        elif self.judged_by_clients:
            trainer.evaluate(trees.take(examples, slice(0, 2)))


def probed(data: FederatedData) -> Examples:
    """The examples of the first client that has any: two of them, if there is a client with as many."""
    return data.client(int(np.flatnonzero(data.sizes >= min(2, data.sizes.max()))[0]))


def proved_trainer(setup: Setup, data: FederatedData) -> Trainer:
    """A trainer with initial weights, for a simulation on these data."""
    first = probed(data)
    trainer = setup.new_trainer(first)
    check_single(trainer, first, data.sizes, setup.plan)
    make_ready(trainer, first, data.sizes, setup.plan)
    return trainer


def update_size(algorithm: Algorithm, stages: Sequence[Stage], parameters: int) -> int:
    """How many numbers an update has: the algorithm's vectors, and what stages append."""
    return parameters * algorithm.vectors_up + sum(stage.appends for stage in stages)


def cohort_size(C: float, clients: Population) -> int:
    """m = max(C K, 1), at most as many as have data."""
    return min(max(round(C * clients.count), 1), clients.with_data)


def resolve(plan: Plan, population: Population | None, test: Examples | None) -> Setup:
    """The plan's parts for whoever runs it, with the population and the test set that there are.

    Whatever does not fit is refused here.
    """
    draft = _draft(plan, population, test)
    _check_evaluation(draft)
    return _bound_together(draft)


def resolve_on_device(plan: Plan) -> Setup:
    """The plan's parts for one of its clients, which knows neither the others nor the server's test set."""
    return _bound_together(_draft(plan, Population(plan.clients) if plan.clients is not None else None, None))


def _draft(plan: Plan, population: Population | None, test: Examples | None) -> Draft:
    algorithm = make_algorithm(plan.algorithm)
    algorithm.check(plan)
    _check_device(plan.device)
    stages = tuple(make_stage(text) for text in plan.stages)
    task = resolve_task(plan)
    codec = _bound(plan.codec, task, algorithm.vectors_up)
    draft = Draft(
        plan, task, algorithm, codec, stages, _resolve_sampler(plan, task), _resolve_secagg(plan), population, test
    )
    check_pairs(draft)
    check_world(draft)
    return draft


def _bound_together(draft: Draft) -> Setup:
    bound = bind_shares(replace(draft, stages=tuple(stage.bind(draft) for stage in draft.stages)))
    return Setup(
        plan=draft.plan,
        task=draft.task,
        algorithm=draft.algorithm,
        codec=draft.codec,
        stages=bound.stages,
        population=draft.population,
        test=draft.test,
        downlink=_resolve_downlink(draft.plan, draft.task, draft.algorithm),
        secagg=bound.secagg,
        budget=budget_of(bound),
        judged_by_server=draft.judged_by_server,
        judged_by_clients=draft.judged_by_clients,
        remembers=draft.sampler.remembers,
    )


def goal_of(plan: Plan, task: Task) -> Goal:
    """What a run of the plan is watched by, and when it may stop."""
    training = measures_by_name(make_algorithm(plan.algorithm).metrics)
    return make_goal(plan.target, plan.patience, task.judged_by, training)


def simulation(plan: Plan) -> tuple[Setup, FederatedData]:
    """A plan and its data for a simulation on this machine."""
    data = resolve_data(plan)
    return resolve(plan, population_of(data), data.test), data


def population_of(data: FederatedData) -> Population:
    return Population(len(data), data.sizes, data.held_sizes)


def _check_evaluation(draft: Draft) -> None:
    """Refuse an evaluation that nobody can do, and options that would have no effect."""
    plan = draft.plan
    if "server" in plan.evaluate and not draft.test:
        raise PlanError(f"evaluate: got '{plan.evaluate}', but the data has no test set; expected one, "
                        "or evaluate 'clients' with a holdout, or 'none'")  # fmt: skip
    if "clients" in plan.evaluate and not draft.holds_out:
        raise PlanError(f"evaluate: got '{plan.evaluate}', but no client holds examples out; set holdout, as in 0.2, "
                        "large enough that clients of 2 or more examples have some")  # fmt: skip
    _check_goal(draft)
    if plan.eval_clients is not None and not draft.judged_by_clients:
        raise PlanError(f"eval_clients: got {plan.eval_clients}, but no client judges the model; expected evaluate "
                        "'clients' or 'server,clients' too")  # fmt: skip
    held = draft.population.held_sizes if draft.population else None
    if draft.judged_by_clients and draft.secagg and held is not None:
        able = int(np.count_nonzero(held))
        draft.secagg.check(min(plan.eval_clients or able, able))


def _check_goal(draft: Draft) -> None:
    """A run does not wait for a number that no round will have."""
    plan, goal = draft.plan, goal_of(draft.plan, draft.task)
    option = "target" if goal.target is not None else "patience"
    if goal.target is None and goal.patience is None:
        return
    got, scope = f"{option}: got {getattr(plan, option)}", goal.metric.partition(".")[0]
    if goal.metric in draft.task.judged_by:
        if not (draft.judged_by_server or draft.judged_by_clients):
            raise PlanError(f"{got}, but nothing is evaluated; expected a test set, or a holdout that clients judge on")
    elif scope == TRAINING:
        if any(stage.hides_metrics for stage in draft.stages):
            raise PlanError(f"{got}, but in a private run clients' own numbers stay with them; expected another metric")
    elif not draft.judged_by_clients:
        raise PlanError(f"{got}, but no client judges the model; expected evaluate 'clients' or 'server,clients'")
    elif draft.secagg and goal.metric.removeprefix(f"{CLIENTS}.") not in draft.task.judged_by:
        raise PlanError(f"{got}, but under secure aggregation nobody knows a spread over clients; expected the metric")


def _resolve_sampler(plan: Plan, task: Task) -> Sampler:
    sampler = make_sampler(plan.sampling)
    if sampler.needs_losses and "loss" not in task.judged_by:
        raise PlanError(
            f"sampling: got '{sampler}', which looks at clients' losses, and task '{task.name}' has no metric 'loss'; "
            "expected one: metrics = ['loss']"
        )
    return sampler


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
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # PyTorch's words tell of its own insides
        raise PlanError(f"device: got '{device}', which is not at hand here; expected 'cpu', or 'cuda'") from error


def resolve_data(plan: Plan) -> FederatedData:
    """What clients train on: the plan's data, without what it holds out; all of it as one client for a baseline."""
    data = _whole_data(plan)
    if not data.sizes.any():
        raise DataError(f"data '{data.name}': no client has any example; expected at least one")
    data = HeldOut(data, plan.holdout, plan.seed) if plan.holdout else data
    if make_algorithm(plan.algorithm).pools_data:
        return pooled(data)
    return ChangingData(data, make(plan.changes, Changes), plan.seed) if plan.changes is not None else data


def check_population(plan: Plan, data: FederatedData) -> None:
    """Where all clients are simulated, there are as many as the data has."""
    wanted, have = plan.clients, len(data)
    if wanted not in (None, have) and not make_algorithm(plan.algorithm).pools_data:
        raise PlanError(
            f"clients: got {wanted} with data '{data.name}', which has {have} clients of its own; "
            f"leave it out, or ask for {have}"
        )


def _whole_data(plan: Plan) -> FederatedData:
    if not (isinstance(plan.data, str) and is_named(plan.data)):
        return make(plan.data, FederatedData)  # type: ignore[type-abstract]
    data_dir = Path(plan.data_dir) if plan.data_dir else None
    return load(plan.data, plan.partition, plan.clients, plan.seed, data_dir)
