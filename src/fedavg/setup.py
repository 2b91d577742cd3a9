"""Turns the names of a plan into objects, and refuses what does not fit, before round 1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedavg import seeds, trees
from fedavg.adapters import make_adapters
from fedavg.algorithms import Algorithm, make_algorithm
from fedavg.attacks import Attack
from fedavg.checks import (
    check_evaluation,
    check_frozen,
    check_simulated,
    check_steps,
    check_world,
    checked_liars,
    goal_of,
)
from fedavg.codecs import Codec
from fedavg.codecs.downlink import Downlink
from fedavg.data import HeldOut, is_named, load, pooled
from fedavg.data.changes import Changes, ChangingData
from fedavg.data.finite import check_finite
from fedavg.data.form import check_client, check_sizes
from fedavg.dp.accounting import EveryRound
from fedavg.draft import Draft, update_size
from fedavg.engine.model import Model
from fedavg.engine.ready import make_ready
from fedavg.engine.single import check_single
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, PlanError
from fedavg.metrics import Measure, Metric, by_name
from fedavg.metrics.goal import Goal
from fedavg.metrics.training import measures_by_name, names_sent
from fedavg.optimizers import make_optimizer
from fedavg.parts import attack_of, bound_codec, check_device, defence_of, downlink_of, sampler_of, secagg_of
from fedavg.plan import Plan
from fedavg.plan.options import NO_DATA
from fedavg.privacy.ledger import Budget, budget_of, check_limit
from fedavg.privacy.pairs import check_pairs
from fedavg.privacy.shares import bind_shares
from fedavg.robust import Defence
from fedavg.specs import make
from fedavg.stages import Stage, make_stage
from fedavg.tasks import Task
from fedavg.types import Examples, FederatedData, Population, Update, Work

if TYPE_CHECKING:  # secure aggregation needs `cryptography`, which a plain simulation does not
    from fedavg.secagg.options import Masking


@dataclass(frozen=True)
class Setup:
    """A plan with everything it names, each part bound to the others. Read-only: workers share it.

    It holds no clients' examples: those stay with the clients.
    """

    plan: Plan
    task: Task
    algorithm: Algorithm
    codec: Codec
    stages: tuple[Stage, ...]
    population: Population | None
    #: What the server judges models on; None if it has no test set.
    test: Examples | None
    #: How the server's change is sent; None: clients fetch the whole model each time.
    downlink: Downlink | None
    #: How updates are masked, so that the server sees only their sum; None: they are not masked.
    secagg: "Masking | None"
    #: The privacy cost of the rounds; None for a run that is not differentially private.
    budget: Budget | None
    #: Who judges the model: the server on its test set, clients on their holdout, both or nobody.
    judged_by_server: bool
    judged_by_clients: bool
    #: True if the sampler uses what earlier rounds showed about clients.
    remembers: bool = False
    #: The reducer over single updates; None: the weighted mean.
    defence: Defence | None = None
    #: How `attackers` lie; None: nobody does.
    attack: Attack | None = None
    attackers: frozenset[int] = frozenset()

    @cached_property
    def single_updates(self) -> bool:
        """True if a fleet must return the updates one by one, in memory, instead of their sum."""
        return bool(self.defence and self.defence.reducer.single_updates) or self.liars_see_all

    @property
    def liars_see_all(self) -> bool:
        """True if liars compute their updates from the honest ones of the round: they need not train."""
        return self.attack is not None and self.attack.sees == "honest"

    def lie_of(self, k: int) -> Attack | None:
        """How client k lies on its own; None if it does not."""
        return self.attack if k in self.attackers and not self.liars_see_all else None

    @cached_property
    def algorithm_measures(self) -> Mapping[str, Measure]:
        """What clients measure in training, by name."""
        return measures_by_name(self.algorithm.metrics)

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The measures that clients send: none, if a stage hides them."""
        return {} if any(stage.hides_metrics for stage in self.stages) else self.algorithm_measures

    @property
    def metrics(self) -> frozenset[str]:
        """The names of the numbers sent with every update."""
        return frozenset(names_sent(self.measures))

    @cached_property
    def shows_updates(self) -> bool:
        """True if the server may see single updates: they are neither masked nor under differential privacy."""
        hidden = any(stage.hides_metrics for stage in self.stages)
        return not hidden and self.secagg is None and self.budget is None

    @property
    def goal(self) -> Goal:
        """The metric that the run watches, and when it may stop."""
        return goal_of(self.plan, self.task)

    @property
    def keeps_state(self) -> bool:
        """True if clients keep anything between rounds."""
        return self.algorithm.keeps_state or self.codec.keeps_residual or make_optimizer(self.plan.optimizer).keep

    def update_size(self, parameters: int) -> int:
        return update_size(self.algorithm, self.stages, parameters)

    def stage_rng(self, round: int, client: int, index: int) -> np.random.Generator:
        """The generator of the index-th stage: from the seed, or from OS entropy."""
        if self.plan.noise_source == "os":
            return seeds.fresh_rng()
        return seeds.rng(self.plan.seed, round, client, f"stage {index}")

    def arrived(self, vector: Tensor, weight: float, work: Work) -> Update:
        """An update as the server counts it: stages enforce their bounds on arrival, since a client may lie."""
        update = Update(vector, weight)
        for stage in self.stages:
            update = stage.on_arrival(update, work)
        return update

    def new_trainer(self, examples: Examples, frozen: Mapping[str, Tensor] | None = None) -> Trainer:
        """A trainer with initial weights, its engine chosen and checked on a client's examples and the test set.

        `frozen` is memory that already holds the frozen weights.
        """
        trainer = Trainer(self.task, self.plan.seed, self.plan.device, make_optimizer(self.plan.optimizer), frozen)
        check_frozen(self.plan.frozen, trainer.model)
        batch = int(min(self.plan.work(1).batch, len(examples)))
        trainer.choose_engine(self.plan.engine, trees.take(examples, slice(0, batch)))
        self._probe_metrics(trainer, examples)
        return trainer

    def _probe_metrics(self, trainer: Trainer, examples: Examples) -> None:
        """Try each metric: one that fails should fail now."""
        if self.judged_by_server and self.test:
            check_finite(self.test, "the test set")
            trainer.evaluate(trees.take(self.test, slice(0, 2)))
        elif self.judged_by_clients:
            trainer.evaluate(trees.take(examples, slice(0, 2)))


def probed(data: FederatedData) -> Examples:
    """The examples of the first client that has at least two; if none has, of the first that has any."""
    k = int(np.flatnonzero(data.sizes >= min(2, data.sizes.max()))[0])
    examples = data.client(k)
    check_client(data, k, examples)
    return examples


def proved_trainer(setup: Setup, data: FederatedData, frozen: Mapping[str, Tensor] | None = None) -> Trainer:
    """A trainer with initial weights, for a simulation on these data; `frozen` as in `Setup.new_trainer`."""
    first = probed(data)
    trainer = setup.new_trainer(first, frozen)
    batches, drop_last = setup.plan.schedule("B").values, setup.plan.drop_last
    check_single(trainer, first, data.sizes, batches, drop_last)
    make_ready(trainer, first, data.sizes, batches, drop_last)
    return trainer


def resolve(plan: Plan, population: Population | None, test: Examples | None, devices: bool = False) -> Setup:
    """The plan's parts for the process that runs it, with the actual population and test set.

    Whatever does not fit is refused here. `devices` means that clients are real devices, which come and go.
    """
    draft = _draft(plan, population, test)
    if not devices:
        check_simulated(draft)
    check_steps(draft)
    check_evaluation(draft)
    return _bound_together(draft)


def served(setup: Setup) -> Setup:
    """The setup with its rounds' privacy cost over the network; refuses a plan whose promise cannot be kept there."""
    if setup.budget is None:
        return setup
    if setup.plan.noise_source == "seeded":
        raise PlanError(
            "noise_source: got 'seeded', which lets anyone with the plan remove the noise; a private run "
            "over the network needs 'os'"
        )
    if setup.plan.clients is None:
        raise PlanError("clients: a private run over the network needs K, which its noise is computed for; got none")
    by_clients = any(stage.mechanism and stage.mechanism.by == "clients" for stage in setup.stages)
    if by_clients and setup.secagg is None:
        raise PlanError(
            "noise where=clients: over the network the server would see each update with a share of the noise alone; "
            "expected secagg, as in secagg = 'complete:4:1', or where=server"
        )
    budget = replace(setup.budget, sampling=EveryRound())
    check_limit(setup.plan.dp_epsilon, budget)
    return replace(setup, budget=budget)


def resolve_on_device(plan: Plan) -> Setup:
    """The plan's parts for one client, which knows neither the others nor the server's test set."""
    return _bound_together(_draft(plan, Population(plan.clients) if plan.clients is not None else None, None))


def _draft(plan: Plan, population: Population | None, test: Examples | None) -> Draft:
    algorithm = make_algorithm(plan.algorithm)
    algorithm.check(plan)
    check_device(plan.device)
    stages = tuple(make_stage(text) for text in plan.stages)
    task = resolve_task(plan)
    codec = bound_codec(plan.codec, task, algorithm.vectors_up)
    draft = Draft(
        plan=plan,
        task=task,
        algorithm=algorithm,
        codec=codec,
        stages=stages,
        sampler=sampler_of(plan, task),
        secagg=secagg_of(plan),
        population=population,
        test=test,
        defence=defence_of(plan),
        attack=attack_of(plan, task),
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
        downlink=downlink_of(draft.plan, draft.task, draft.algorithm),
        secagg=bound.secagg,
        budget=budget_of(bound),
        judged_by_server=draft.judged_by_server,
        judged_by_clients=draft.judged_by_clients,
        defence=draft.defence,
        attack=draft.attack,
        attackers=checked_liars(draft),
        remembers=draft.sampler.remembers,
    )


def simulation(plan: Plan) -> tuple[Setup, FederatedData]:
    """A plan and its data for a simulation on this machine."""
    data = resolve_data(plan)
    return resolve(plan, population_of(data), data.test), data


def population_of(data: FederatedData) -> Population:
    return Population(len(data), data.sizes, data.held_sizes)


def resolve_task(plan: Plan) -> Task:
    """The task, with the adapters and metrics that the plan adds to its own."""
    task = make(plan.task, Task)
    if plan.adapters is not None:
        task = replace(task, adapters=make_adapters(plan.adapters))
    if not plan.metrics:
        return task
    metrics: dict[str, Metric] = {**task.judged_by, **by_name(plan.metrics, task.loss)}
    return replace(task, metrics=metrics)


def pinned(plan: Plan) -> Plan:
    """The plan with the fingerprint of its task's frozen weights, so that no device trains on different ones."""
    model = Model(resolve_task(plan), plan.seed)
    check_frozen(plan.frozen, model)
    return replace(plan, frozen=model.frozen.fingerprint or None)


def resolve_data(plan: Plan) -> FederatedData:
    """What clients train on: the plan's data without the holdout; for a pooled baseline, all data as one client."""
    if plan.data == NO_DATA:
        raise DataError(
            f"data: got '{NO_DATA}', which is for a server whose devices have all the data ('fedavg serve'); a "
            "simulation needs data: a name, 'module:Name' of your own, or fedavg.from_arrays(...)"
        )
    data = _whole_data(plan)
    check_sizes(data)
    data = HeldOut(data, plan.holdout, plan.seed) if plan.holdout else data
    if make_algorithm(plan.algorithm).pools_data:
        return pooled(data)
    return ChangingData(data, make(plan.changes, Changes), plan.seed) if plan.changes is not None else data


def check_population(plan: Plan, data: FederatedData) -> None:
    """Refuse a plan whose number of clients differs from that of the data, where all clients are simulated."""
    wanted, have = plan.clients, len(data)
    if wanted not in (None, have) and not make_algorithm(plan.algorithm).pools_data:
        raise PlanError(
            f"clients: got {wanted} with data '{data.name}', which has {have} clients of its own; "
            f"leave it out, or ask for {have}"
        )


def _whole_data(plan: Plan) -> FederatedData:
    if not (isinstance(plan.data, str) and is_named(plan.data)):
        check_data_dir(plan)
        data = make(plan.data, FederatedData)  # type: ignore[type-abstract]
        _check_classes(make(plan.task, Task), data)
        return data
    data_dir = Path(plan.data_dir) if plan.data_dir else None
    return load(plan.data, plan.partition, plan.clients, plan.seed, data_dir)


def check_data_dir(plan: Plan) -> None:
    """Refuse `data_dir` for data that is not a named data set."""
    if plan.data_dir is not None:
        got = f"'{plan.data}'" if isinstance(plan.data, str) else "an object of your own"
        raise PlanError(
            f"data_dir: got '{plan.data_dir}', where named data sets are kept, and data is {got}; leave it out"
        )


def _check_classes(task: Task, data: FederatedData) -> None:
    """Labels must have the same numbers in the task, which devices follow, and in the data."""
    if None not in (task.classes, data.classes) and task.classes != data.classes:
        raise DataError(
            f"data '{data.name}' numbers its labels {data.classes}, task '{task.name}' {task.classes}; expected the "
            "same: give the data classes=..., as in fedavg.from_folder(..., classes=task.classes)"
        )
