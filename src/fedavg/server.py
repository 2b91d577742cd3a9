"""The only server loop: draw a cohort, assign models to clients, have the fleet train, apply the server half.

It does not know where clients run, nor who consumes its events: a recorder, a progress line, a notebook.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from fedavg import seeds
from fedavg.errors import Diverged
from fedavg.fleets import Abandoned, CohortResult, Fleet, in_world, make_fleet
from fedavg.metrics import report
from fedavg.metrics.goal import Best, Goal, improved, stalled
from fedavg.metrics.rows import watched
from fedavg.plan import Plan, check_plan
from fedavg.privacy.ledger import budget_spent
from fedavg.reduction import check_gathering, reduced, who_trains
from fedavg.setup import Setup, resolve
from fedavg.types import Cohort, Part, State, Sum, Work

#: The name under which the downlink keeps its slots.
DOWNLINK: Final = "downlink"
#: The name under which the loop itself keeps the best value of the metric that it waits for.
GOAL: Final = "goal"
#: The name under which a reducer keeps its memory.
REDUCER: Final = "reducer"
#: The metric for how often the model gives the answers that an attack wants.
SUCCESS: Final = "attack_success"
#: The name under which a fleet keeps what it needs to continue.
FLEET: Final = "fleet"


@dataclass(frozen=True)
class Start:
    """Before round 1, or where a run resumes: the state after `round` rounds.

    >>> from fedavg import Plan
    >>> plan = Plan(data="mnist", C=0.02, rounds=2, workers=1)
    >>> first, one, two = train(plan)
    >>> first.round, first.engine
    (0, 'graph...')
    >>> [event.round for event in train(plan, start=Start(1, one.state))]
    [1, 2]
    """

    round: int
    state: State
    engine: str = ""
    engine_reason: str = ""


@dataclass(frozen=True)
class Round:
    """What happened in one round. `test` and `train` are set only for rounds that were evaluated.

    >>> from fedavg import Plan
    >>> *_, last = train(Plan(data="mnist", C=0.02, rounds=2, eval_every=2, workers=1))
    >>> last.round, last.clients, sorted(last.test), tuple(last.state.weights.shape)
    (2, 2, ['accuracy', 'loss'], (199210,))
    """

    round: int
    lr: float
    clients: int
    examples: float
    #: None if no client took part, or if differential privacy keeps the clients' own numbers from the server.
    train_loss: float | None
    bytes_up: int
    bytes_down: int
    simulated_s: float
    seconds: float
    eval_seconds: float
    #: Numbers of updates that secure aggregation had to cut to its clip range.
    saturated: int
    test: dict[str, float] | None
    train: dict[str, float] | None
    state: State
    #: What the algorithm measures besides its training loss (`Algorithm.metrics`), over the cohort.
    metrics: dict[str, float] = field(default_factory=dict)
    #: How clients judged the model on their holdout; see `fedavg.metrics.spread.OnClients`.
    on_clients: dict[str, Any] | None = None
    #: For a private run: epsilon of all rounds up to this one, and the entry in the ledger that it follows from.
    epsilon: float | None = None
    ledger: dict[str, Any] | None = None
    #: How the round went in the plan's world; see `fedavg.world.report.ClockRow`.
    world: dict[str, Any] | None = None
    #: Which clients were asked and how each of them fared; see `fedavg.fleets.attendance.Attendance`.
    cohort: dict[str, Any] | None = None


#: What `train` yields, and what a `watch` is called with.
Event = Start | Round
Watcher = Callable[[Event], None]


def event_row(event: Round) -> dict[str, Any]:
    """A round as plain values, without its state; optional values are included only if this run has them.

    A number that is not finite is None: JSON cannot express it.
    """
    absent = {"state"} if event.ledger else {"state", "epsilon", "ledger"}
    absent |= {name for name in ("metrics", "on_clients", "world", "cohort") if not getattr(event, name)}
    return {name: _plain(getattr(event, name)) for name in Round.__dataclass_fields__ if name not in absent}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def train(plan: Plan, fleet: str | Fleet = "local", start: Start | None = None) -> Iterator[Event]:
    """An iterator over the events of a run: a `Start`, then one `Round` per round, up to the target or the end.

    Nothing runs until you iterate. `fleet` says where clients run: an object, a name, or the import name
    of installed code. With `start`, an earlier point of the same run, it continues from there.

    >>> from fedavg import Plan
    >>> for event in train(Plan(data="mnist", C=0.02, rounds=2, workers=1)):
    ...     print(type(event).__name__, event.round)
    Start 0
    Round 1
    Round 2
    """
    check_plan(plan, "train")
    clients = make_fleet(fleet)
    yield from rounds(resolve(plan, clients.open(plan), clients.test), clients, start)


def rounds(setup: Setup, fleet: Fleet, start: Start | None = None) -> Generator[Event, None, None]:
    """The events of a run on a fleet that is open for the setup's plan; closes the fleet at the end."""
    fleet = in_world(fleet, setup)
    with closing(fleet):
        check_gathering(setup, fleet)
        initial = fleet.start(setup)
        begin = start or Start(0, _initial_state(setup, initial))
        fleet.recall(begin.state.others.get(FLEET, {}))
        yield replace(begin, engine=fleet.engine.name, engine_reason=fleet.engine.reason)
        state = begin.state
        for number in range(begin.round + 1, setup.plan.rounds + 1):
            if setup.algorithm.finished(state):
                return
            work, began = instructions(setup, state, number), perf_counter()
            trained: _TrainedCohort | None = None
            while trained is None:  # an abandoned attempt is repeated with another cohort
                with _rejected_if_diverged(fleet, work):
                    cohort = fleet.draw(number, state.weights)
                    before, parts = assigned(setup, state, work, cohort)
                    result = fleet.train(cohort, work, who_trains(setup, parts))
                    if not isinstance(result, Abandoned):
                        trained = _averaged(setup, before, cohort, result, work)
            del result  # otherwise single updates stay in memory while the next cohort trains
            trained = _remembering(fleet, trained)
            event = _watching(setup.goal, _judged_round(setup, fleet, state, work, trained, perf_counter() - began))
            state = event.state
            yield event
            if _enough(setup.goal, event) or budget_spent(setup.plan.dp_epsilon, event.ledger):
                return


def _watching(goal: Goal, event: Round) -> Round:
    """The round with the best value so far in its state, if the run waits for a better one, so that a resumed run
    continues to wait."""
    if goal.patience is None or (value := watched(event_row(event), goal.metric)) is None:
        return event
    best = improved(goal, _best(event.state), event.round, value)
    kept = {"best": torch.tensor([best.value, best.round], dtype=torch.float64)}
    return replace(event, state=replace(event.state, others={**event.state.others, GOAL: kept}))


def _best(state: State) -> Best | None:
    if GOAL not in state.others:
        return None
    value, round = state.others[GOAL]["best"].tolist()
    return Best(value, int(round))


def _enough(goal: Goal, event: Round) -> bool:
    """True if the run may stop after this round."""
    value, best = watched(event_row(event), goal.metric), _best(event.state)
    if value is not None and goal.reached(value):
        return True
    return best is not None and stalled(goal, best, event.round)


@contextmanager
def _rejected_if_diverged(fleet: Fleet, work: Work) -> Iterator[None]:
    """Divergence ends the run, unless the fleet says that another attempt may go better."""
    try:
        yield
    except Diverged as error:
        if not fleet.reject(work, str(error)):
            raise Diverged(f"round {work.round} diverged at lr={work.lr:.4g}: {error}. Use a smaller lr.") from None


@dataclass(frozen=True)
class _TrainedCohort:
    """A cohort that did its work, the sum of what it sent, and the server's state after it."""

    cohort: Cohort
    result: CohortResult
    after: State


def _judged_round(
    setup: Setup, fleet: Fleet, before: State, work: Work, trained: _TrainedCohort, seconds: float
) -> Round:
    """What happened in a round, with the evaluation of the new model if one is due."""
    began, cohort, result, after = perf_counter(), trained.cohort, trained.result, trained.after
    due = work.round % setup.plan.eval_every == 0 or work.round == setup.plan.rounds
    test = _judged_by_server(setup, fleet, after.weights) if due and setup.judged_by_server else None
    on_train = fleet.evaluate(after.weights, "train") if due and setup.plan.eval_train else None
    found = fleet.evaluate_on_clients(after.weights, work.round) if due and setup.judged_by_clients else None
    entry = setup.budget.entry(work.round, result.releases) if setup.budget else None
    measured = result.total.metrics
    return Round(
        round=work.round,
        lr=work.lr,
        clients=result.total.count,
        examples=result.total.weight,
        train_loss=measured.get("train_loss"),
        bytes_up=result.bytes_up + cohort.bytes_up,
        bytes_down=_bytes_down(setup, before, trained, work) + cohort.bytes_down,
        simulated_s=_simulated_s(result, setup.plan),
        seconds=seconds,
        eval_seconds=perf_counter() - began,
        saturated=result.saturated,
        test=test,
        train=on_train,
        state=after,
        metrics={name: value for name, value in measured.items() if name != "train_loss"},
        on_clients=found.to_dict() if found else None,
        epsilon=entry["epsilon"] if entry else None,
        ledger=entry,
        world=dict(result.world) if result.world else None,
        cohort=result.attendance.to_dict() if result.attendance else None,
    )


def _judged_by_server(setup: Setup, fleet: Fleet, weights: Tensor) -> dict[str, float]:
    test = fleet.evaluate(weights, "test")
    if setup.attack and setup.attack.targeted:
        test[SUCCESS] = fleet.evaluate(weights, "triggered")["accuracy"]
    return test


def _simulated_s(result: CohortResult, plan: Plan) -> float:
    """How long the round took: on the world's clock or, without a world, as long as the largest message takes."""
    if result.world:
        return float(result.world["closed_s"] - result.world["began_s"])
    return result.largest_up / (plan.uplink * 1e6)


def _remembering(fleet: Fleet, trained: _TrainedCohort) -> _TrainedCohort:
    """Adds what the fleet needs to continue from here, so that a resumed run continues the same way."""
    kept = fleet.remember()
    if not kept:
        return trained
    return replace(trained, after=replace(trained.after, others={**trained.after.others, FLEET: kept}))


def _owner(index: int) -> str:
    """The name under which the index-th stage keeps its slots."""
    return f"stage {index}"


def _initial_state(setup: Setup, weights: Tensor) -> State:
    others = {_owner(index): stage.initial() for index, stage in enumerate(setup.stages)}
    if setup.downlink:
        others[DOWNLINK] = setup.downlink.initial(weights)
    return replace(setup.algorithm.initial(weights), others=others)


def instructions(setup: Setup, state: State, round: int) -> Work:
    """The plan's work for a round, with the changes that the stages and the algorithm make from the state."""
    told = [stage.settings(state.others.get(_owner(index), {})) for index, stage in enumerate(setup.stages)]
    settings = {name: value for settings in told for name, value in settings.items()}
    return setup.algorithm.adjust(state, replace(setup.plan.work(round), settings=settings))


def assigned(setup: Setup, state: State, work: Work, cohort: Cohort) -> tuple[State, Sequence[Part]]:
    """Which clients train from which model, and the state that records it; each part has the frames by which clients
    follow the model."""
    rng = seeds.rng(setup.plan.seed, work.round, seeds.NONE, "assign")
    assigned, parts = setup.algorithm.assign(state, work, cohort.clients, rng, cohort.errands)
    if setup.downlink:
        frames = setup.downlink.frames(state.others[DOWNLINK])
        parts = [replace(part, frames=frames) for part in parts]
    return replace(assigned, others=state.others), parts


def _averaged(setup: Setup, before: State, cohort: Cohort, result: CohortResult, work: Work) -> _TrainedCohort:
    """From the cohort's sum, through the stages in reverse, to the next state, as clients receive it."""
    result, kept = reduced(setup, cohort, result, work, before.others.get(REDUCER, {}))
    measured = report(setup.measures, result.total.sums) if result.total.sums else {}
    total = summed = replace(result.total, metrics=measured, population=cohort.population)
    for index, stage in reversed(list(enumerate(setup.stages))):
        total = stage.on_sum(total, work, setup.stage_rng(work.round, seeds.NONE, index))
    after = _server_half(setup, before, total, work) if total.weight else before  # nobody took part: no mean
    if setup.downlink:
        weights, sent = setup.downlink.send(
            before.others[DOWNLINK], before.weights, after.weights, cohort.clients, work.round
        )
        after = replace(after, weights=weights, others={**after.others, DOWNLINK: sent})
    if kept:
        after = replace(after, others={**after.others, REDUCER: kept})
    _check_finite(after.weights)
    return _TrainedCohort(cohort, replace(result, total=summed), after)


def _server_half(setup: Setup, state: State, total: Sum, work: Work) -> State:
    kept = {
        _owner(index): stage.after(state.others.get(_owner(index), {}), total, work)
        for index, stage in enumerate(setup.stages)
    }
    return replace(setup.algorithm.server_update(state, total, work), others={**state.others, **kept})


def _bytes_down(setup: Setup, state: State, trained: _TrainedCohort, work: Work) -> int:
    if setup.downlink:
        return setup.downlink.fetched(state.others[DOWNLINK], trained.cohort.clients, work.round)
    return trained.result.bytes_down


def _check_finite(weights: Tensor) -> None:
    if not all(isfinite(float(end)) for end in weights.aminmax()):  # one pass: both ends are NaN if any number is
        raise Diverged("the new weights are not finite")
