"""Learning rates by round. A plan keeps a rate as a number or as text; `rate_at` says what it is in a round.

    0.1                             the same in every round
    0.1,100:0.01                    0.1 from round 1 on, 0.01 from round 100 on
    exponential:0.1:0.99            multiplied by 0.99 after each round, as lr=0.1 with lr_decay=0.99
    step:0.1:every=30:factor=0.1    multiplied by 0.1 after every 30 rounds
    cosine:0.1:end=0.001            along half a cosine, from 0.1 in the first round to 0.001 in the last
    constant:0.1:warmup=5           after 5 rounds in which it rises by equal steps; all of these have `warmup`

A user's own function of the round is asked once for each round of the plan, and its answers are kept as text: so
they are part of the plan's digest, and travel to devices like any others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import cos, inf, isfinite, pi

from fedavg.errors import PlanError
from fedavg.specs import parse_spec


class Rate(ABC):
    """eta by round."""

    start: float
    warmup: int

    @abstractmethod
    def after_warmup(self, round: int, rounds: int) -> float:
        """The rate of a round, counted from 1 after the warm-up, of so many."""


@dataclass(frozen=True)
class Constant(Rate):
    """The same rate in every round, after a warm-up if there is one.

    >>> rate_at("constant:0.1:warmup=4", 2, 100)
    0.05
    """

    start: float
    warmup: int = 0

    def after_warmup(self, round: int, rounds: int) -> float:
        return self.start


@dataclass(frozen=True)
class Exponential(Rate):
    """Multiplied by `factor` after each round.

    >>> rate_at("exponential:0.5:0.5", 3, 100)
    0.125
    """

    start: float
    factor: float
    warmup: int = 0

    def __post_init__(self) -> None:
        _require("exponential", "factor", self.factor, 0 < self.factor < inf, "a finite number above 0")

    def after_warmup(self, round: int, rounds: int) -> float:
        return self.start * self.factor ** (round - 1)


@dataclass(frozen=True)
class Step(Rate):
    """Multiplied by `factor` after every so many rounds.

    >>> [rate_at("step:1:every=2:factor=0.5", t, 5) for t in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    start: float
    every: int
    factor: float = 0.1
    warmup: int = 0

    def __post_init__(self) -> None:
        _require("step", "every", self.every, self.every >= 1, "at least 1")
        _require("step", "factor", self.factor, 0 < self.factor < inf, "a finite number above 0")

    def after_warmup(self, round: int, rounds: int) -> float:
        return self.start * self.factor ** ((round - 1) // self.every)


@dataclass(frozen=True)
class Cosine(Rate):
    """Half a cosine from `start` in the first round to `end` in the last (or in round `rounds`, and so from there on).

    >>> [round(rate_at("cosine:1:end=0.5", t, 3), 3) for t in (1, 2, 3)]
    [1.0, 0.75, 0.5]
    """

    start: float
    end: float = 0.0
    rounds: int = 0
    warmup: int = 0

    def __post_init__(self) -> None:
        _require("cosine", "end", self.end, 0 <= self.end < inf, "a finite number from 0")
        _require("cosine", "rounds", self.rounds, self.rounds >= 0, "at least 1, or 0 for all of the plan's")

    def after_warmup(self, round: int, rounds: int) -> float:
        last = self.rounds - self.warmup if self.rounds else rounds
        share = min((round - 1) / max(last - 1, 1), 1.0)
        return self.end + (self.start - self.end) * (1 + cos(pi * share)) / 2


RATES: dict[str, type[Rate]] = {"constant": Constant, "exponential": Exponential, "step": Step, "cosine": Cosine}
_FORMS = "a number above 0, values by round as in '0.1,100:0.01', a function of the round, or one of " + ", ".join(
    RATES
)


def parse_rate(value: object) -> "float | str | Callable[[int], float]":
    """What a plan keeps: a number, or a text in one way of writing it; a function is left for `listed`."""
    if isinstance(value, Rate):
        value = _text(value)
    if callable(value):
        return value
    try:
        return _positive(float(str(value))) if not isinstance(value, bool) else _positive(-1.0)
    except ValueError:
        if not isinstance(value, str):
            raise ValueError(_FORMS) from None
    if value.partition(":")[0] in RATES:
        _named(value)
        return value
    return _as_text(_steps(value))


def listed(rate: Callable[[int], float], rounds: int) -> "float | str":
    """The answers of a user's own function, from each round on where they change."""
    try:
        values = [_positive(float(rate(round))) for round in range(1, rounds + 1)]
    except (TypeError, ValueError, ArithmeticError) as error:
        raise PlanError(
            f"lr: the function can not be asked for rounds 1 to {rounds} ({error}); expected a number above 0 for each"
        ) from None
    changes = [(number, after) for number, (before, after) in enumerate(pairwise(values), 2) if before != after]
    return _as_text([(1, values[0]), *changes])


def rate_at(rate: "float | str", round: int, rounds: int) -> float:
    """eta in round t = 1, 2, ... of a plan of so many rounds."""
    if not isinstance(rate, str):
        return rate
    if rate.partition(":")[0] not in RATES:
        return [value for first, value in _steps(rate) if first <= round][-1]
    made = _named(rate)
    if round <= made.warmup:
        return made.start * round / made.warmup
    return made.after_warmup(round - made.warmup, rounds - made.warmup)


@lru_cache
def _named(text: str) -> Rate:
    rate = parse_spec(text, RATES, "lr")
    name = text.partition(":")[0]
    _require(name, "start", rate.start, 0 < rate.start < inf, "a finite number above 0")
    _require(name, "warmup", rate.warmup, rate.warmup >= 0, "a number of rounds")
    return rate


@lru_cache
def _steps(text: str) -> list[tuple[int, float]]:
    """'0.1,100:0.01' as ((1, 0.1), (100, 0.01))."""
    steps = []
    for part in text.split(","):
        first, _, value = part.rpartition(":")
        try:
            steps.append((int(first) if first else 1, _positive(float(value))))
        except ValueError:
            raise ValueError(_FORMS) from None
    starts = [first for first, _ in steps]
    if starts[0] != 1 or starts != sorted(set(starts)):
        raise ValueError("rounds in rising order, the first value without one, as in '0.1,100:0.01'")
    return steps


def _as_text(steps: list[tuple[int, float]]) -> "float | str":
    (_, first), *later = steps
    return ",".join([repr(first), *(f"{start}:{value!r}" for start, value in later)]) if later else first


def _positive(number: float) -> float:
    if not isfinite(number) or number <= 0:
        raise ValueError(_FORMS)
    return number


def _require(rate: str, name: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise PlanError(f"lr: {rate} has {name} {value}; expected {expected}")


def _text(rate: Rate) -> str:
    from dataclasses import fields

    name = next(name for name, kind in RATES.items() if kind is type(rate))
    return ":".join([name, *(f"{spec.name}={getattr(rate, spec.name)!r}" for spec in fields(rate))])  # type: ignore[arg-type]
