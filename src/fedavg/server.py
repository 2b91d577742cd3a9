"""The only server loop. It picks cohorts, has a fleet run them, applies the server half and yields what happened.

It does not know where clients run, nor who consumes the events: a recorder, a progress line, a notebook.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import isfinite
from time import perf_counter
from typing import Any

from torch import Tensor

from fedavg import seeds
from fedavg.errors import Diverged
from fedavg.fleets import Fleet, LocalFleet
from fedavg.plan import Plan
from fedavg.privacy.ledger import budget_spent
from fedavg.setup import Setup, resolve
from fedavg.types import Part, State, Sum, Work


@dataclass(frozen=True)
class Start:
    """Before round 1, or where a run goes on: the state after `round` rounds."""

    round: int
    state: State
    engine: str = ""
    engine_reason: str = ""


@dataclass(frozen=True)
class Round:
    """What happened in one round. `test` and `train` are there only for rounds that were evaluated."""

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
    #: For a private run: epsilon of all rounds up to this one, and the entry in the ledger that it follows from.
    epsilon: float | None = None
    ledger: dict[str, Any] | None = None


Event = Start | Round


def event_row(event: Round) -> dict[str, Any]:
    """A round as plain values, without its state; privacy is there only if it is spent."""
    absent = {"state"} if event.ledger else {"state", "epsilon", "ledger"}
    return {name: getattr(event, name) for name in Round.__dataclass_fields__ if name not in absent}


def train(plan: Plan | Setup, fleet: Fleet | None = None, start: Start | None = None) -> Iterator[Event]:
    """Run the plan. The first event is a `Start`, then one `Round` per round; stops at the target or at the end.

    The fleet is local unless another is given. With `start`, an earlier point of the same run, it goes on from there.
    """
    setup = plan if isinstance(plan, Setup) else resolve(plan)
    plan = setup.plan
    with closing(fleet or LocalFleet(setup, plan.workers)) as fleet:
        initial = fleet.start()
        begin = start or Start(0, _initial_state(setup, initial))
        yield replace(begin, engine=fleet.engine.name, engine_reason=fleet.engine.reason)
        state = begin.state
        for number in range(begin.round + 1, plan.rounds + 1):
            if setup.algorithm.finished(state):
                return
            event = run_round(setup, fleet, state, _instructions(setup, state, number))
            state = event.state
            yield event
            if plan.target and event.test and event.test["accuracy"] >= plan.target:
                return
            if budget_spent(plan.dp_epsilon, event.ledger):
                return


def run_round(setup: Setup, fleet: Fleet, state: State, work: Work) -> Round:
    began = perf_counter()
    try:
        assign = _Assignment(setup, state, work)
        result = fleet.train(work, assign)
        bytes_down = setup.downlink.fetched(state, assign.cohort, work.round) if setup.downlink else result.bytes_down
        before, state = assign.state, _server_half(setup, assign.state, result.total, work)
        if setup.downlink:
            state = setup.downlink.send(before, state, assign.cohort, work.round)
        _check_finite(state.weights)
    except Diverged as error:
        raise Diverged(f"round {work.round} diverged at lr={work.lr:.4g}: {error}. Use a smaller lr.") from None
    trained = perf_counter()
    due = work.round % setup.plan.eval_every == 0 or work.round == setup.plan.rounds
    test = fleet.evaluate(state.weights, "test") if due else None
    on_train = fleet.evaluate(state.weights, "train") if due and setup.plan.eval_train else None
    entry = setup.budget.entry(work.round) if setup.budget else None
    return Round(
        round=work.round,
        lr=work.lr,
        clients=result.total.count,
        examples=result.total.weight,
        train_loss=result.total.metrics.get("train_loss"),
        bytes_up=result.bytes_up,
        bytes_down=bytes_down,
        simulated_s=result.largest_up / (setup.plan.uplink * 1e6),
        seconds=trained - began,
        eval_seconds=perf_counter() - trained,
        saturated=result.saturated,
        test=test,
        train=on_train,
        state=state,
        epsilon=entry["epsilon"] if entry else None,
        ledger=entry,
    )


class _Assignment:
    """Who trains from what, for the cohort that a fleet has picked; of several tries at a round, the last counts."""

    def __init__(self, setup: Setup, state: State, work: Work) -> None:
        self._setup, self._before, self._work = setup, state, work
        self.cohort: Sequence[int] = ()
        self.state = state

    def __call__(self, cohort: Sequence[int]) -> Sequence[Part]:
        rng = seeds.rng(self._setup.plan.seed, self._work.round, seeds.NONE, "assign")
        self.cohort = cohort
        self.state, parts = self._setup.algorithm.assign(self._before, self._work, cohort, rng)
        if self._setup.downlink is None:
            return parts
        frames = self._setup.downlink.frames(self._before)
        return [replace(part, frames=frames) for part in parts]


def _initial_state(setup: Setup, weights: Tensor) -> State:
    state = setup.algorithm.initial(weights)
    for stage in setup.stages:
        state = stage.initial(state)
    return setup.downlink.initial(state, len(setup.data)) if setup.downlink else state


def _instructions(setup: Setup, state: State, round: int) -> Work:
    """The plan's work for a round, with what the stages and the algorithm decide from the state."""
    settings = {name: value for stage in setup.stages for name, value in stage.settings(state).items()}
    work = replace(setup.plan.work(round), population=len(setup.data), settings=settings)
    return setup.algorithm.adjust(state, work)


def _server_half(setup: Setup, state: State, total: Sum, work: Work) -> State:
    """From the cohort's sum, through the stages in reverse, to the next state."""
    for index, stage in reversed(list(enumerate(setup.stages))):
        total = stage.on_sum(total, work, setup.stage_rng(work.round, seeds.NONE, index))
    if not total.weight:  # nobody took part: there is nothing to average
        return state
    state = setup.algorithm.server_update(state, total, work)
    for stage in setup.stages:
        state = stage.after(state, total, work)
    return state


def _check_finite(weights: Tensor) -> None:
    if not all(isfinite(float(end)) for end in weights.aminmax()):  # one pass: both ends are NaN if any number is
        raise Diverged("the new weights are not finite")
