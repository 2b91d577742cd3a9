"""Points that are drawn instead of laid out in a grid: at random, or by Optuna from the results of earlier ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any, Final

from fedavg import seeds
from fedavg.errors import FedAvgError, PlanError
from fedavg.study.sweep.axes import Axis, Settings, fitting

#: Optuna proposes this many points at a time, and gets all of their scores before it proposes more: so its proposals do
#: not depend on which point ended first, and a resumed sweep proposes the same.
BATCH: Final = 4

#: The score of a point (higher is better); None if it is not known yet.
Score = Callable[[Settings], float | None]


@dataclass(frozen=True)
class Drawing:
    """How points are drawn: `random` or `optuna`, and how many."""

    method: str
    points: int


def parse_drawing(text: str) -> Drawing:
    """`random:20` or `optuna:30`.

    >>> parse_drawing("random:20")
    Drawing(method='random', points=20)
    """
    method, _, count = text.partition(":")
    if method not in ("random", "optuna") or not count.isdigit() or int(count) < 1:
        raise PlanError(f"--search: got '{text}'; expected random:COUNT or optuna:COUNT, as in random:20")
    return Drawing(method, int(count))


def at_random(axes: Sequence[Axis], count: int, seed: int) -> list[Settings]:
    """Distinct points: from ranges anything between the ends, from lists any value."""
    rng = seeds.rng(seed, seeds.NONE, seeds.NONE, "sweep")
    drawn: dict[Settings, None] = {}
    for _ in range(20 * count):
        drawn[tuple((axis.name, _draw(axis, rng.random())) for axis in axes)] = None
        if len(drawn) == count:
            break
    return list(drawn)


def _draw(axis: Axis, share: float) -> Any:
    if axis.low is None or axis.high is None:
        return axis.values[int(share * len(axis.values))]
    if axis.log:
        return fitting(axis.name, exp(log(axis.low) + share * (log(axis.high) - log(axis.low))))
    return fitting(axis.name, axis.low + share * (axis.high - axis.low))


def by_optuna(axes: Sequence[Axis], count: int, seed: int, score: Score) -> list[Settings]:
    """The points proposed so far: complete batches with known scores, and the next batch."""
    try:
        import optuna
    except ImportError:
        raise FedAvgError(
            "--search optuna needs Optuna, which is not installed: pip install 'fedavg[optuna]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH)
    )
    proposed: dict[Settings, None] = {}
    for first in range(0, count, BATCH):
        trials = [study.ask() for _ in range(min(BATCH, count - first))]
        batch = [tuple((axis.name, _suggest(axis, trial)) for axis in axes) for trial in trials]
        proposed |= dict.fromkeys(batch)
        scores = [score(settings) for settings in batch]
        if None in scores:
            break
        for trial, value in zip(trials, scores, strict=True):
            failed = value is None or value == -inf
            study.tell(trial, None if failed else value, optuna.trial.TrialState.FAIL if failed else None)
    return list(proposed)


def _suggest(axis: Axis, trial: Any) -> Any:
    if axis.low is None:
        return axis.values[trial.suggest_int(axis.name, 0, len(axis.values) - 1)]
    return fitting(axis.name, trial.suggest_float(axis.name, axis.low, axis.high, log=axis.log))
