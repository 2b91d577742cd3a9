"""Learning rates by round. A plan keeps a rate as a number or as text; `rate_at` says what it is in a round.

    0.1                             the same in every round
    0.1,100:0.01                    0.1 from round 1 on, 0.01 from round 100 on
    exponential:0.1:0.99            multiplied by 0.99 after each round, as lr=0.1 with lr_decay=0.99
    step:0.1:every=30:factor=0.1    multiplied by 0.1 after every 30 rounds
    cosine:0.1:end=0.001            along half a cosine, from 0.1 in the first round to 0.001 after the last
    constant:0.1:warmup=5           after 5 rounds in which it rises by equal steps; all of these have `warmup`

A user's own function of the round is asked once for each round of the plan, and its answers are kept as text: so
they are part of the plan's digest, and travel to devices like any others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import cos, inf, isfinite, pi

from fedavg.errors import PlanError
from fedavg.specs import Pluggable, is_import, make, text_of, usage


class Rate(Pluggable, ABC):
    """eta by round. A subclass is a frozen dataclass; its fields are its settings, `start` and `warmup` among them.

    >>> @dataclass(frozen=True)
    ... class Linear(Rate):
    ...     start: float
    ...     warmup: int = 0
    ...
    ...     def after_warmup(self, round, rounds):
    ...         return self.start * (rounds - round + 1) / rounds
    >>> from fedavg import Plan
    >>> plan = Plan(lr=Linear(0.8), rounds=4)
    >>> [plan.work(round).lr for round in (1, 2, 3, 4)]
    [0.8, 0.6000000000000001, 0.4, 0.2]
    """

    kind = "lr"
    start: float
    warmup: int

    @classmethod
    def registry(cls) -> Mapping[str, type["Rate"]]:
        return RATES

    @abstractmethod
    def after_warmup(self, round: int, rounds: int) -> float:
        """The rate of a round, counted from 1 after the warm-up, of that many."""


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
    """Multiplied by `factor` at regular intervals of rounds.

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
    """Half a cosine from `start` in the first round to `end` after the last one, as PyTorch's CosineAnnealingLR. With
    `rounds` it reaches `end` after that many rounds and stays there.

    >>> [round(rate_at("cosine:1:end=0.5", t, 3), 3) for t in (1, 2, 3)]
    [1.0, 0.875, 0.625]
    """

    start: float
    end: float = 0.0
    rounds: int = 0
    warmup: int = 0

    def __post_init__(self) -> None:
        lowest = "above 0, since it is reached" if self.rounds else "from 0"
        _require("cosine", "end", self.end, 0 < self.end < inf or self.end == self.rounds == 0, f"a number {lowest}")
        _require("cosine", "rounds", self.rounds, self.rounds >= 0, "at least 1, or 0 for all of the plan's")

    def after_warmup(self, round: int, rounds: int) -> float:
        last = self.rounds - self.warmup if self.rounds else rounds
        share = min((round - 1) / max(last, 1), 1.0)
        return self.end + (self.start - self.end) * (1 + cos(pi * share)) / 2


RATES: dict[str, type[Rate]] = {"constant": Constant, "exponential": Exponential, "step": Step, "cosine": Cosine}


def _forms() -> str:
    names = ", ".join(usage(RATES))
    return f"a number above 0, values by round as in '0.1,100:0.01', a function of the round, or one of {names}"


def parse_rate(value: object) -> "float | str | Rate | Callable[[int], float]":
    """What a plan keeps: a number, or a text. A function, or a rate that has no text, is left for `listed`."""
    if isinstance(value, Rate):
        return text_of(_checked(value)) or value
    if callable(value):
        return value
    try:
        return _positive(float(str(value))) if not isinstance(value, bool) else _positive(-1.0)
    except ValueError:
        if not isinstance(value, str):
            raise ValueError(_forms()) from None
    return value if _is_named(value) and _named(value) else _as_text(_steps(value))


def listed(rate: "Rate | Callable[[int], float]", rounds: int) -> "float | str":
    """The answers of a user's own function, from each round on where they change."""
    try:
        asked = (_at(rate, t, rounds) if isinstance(rate, Rate) else rate(t) for t in range(1, rounds + 1))
        values = [_positive(float(answer)) for answer in asked]
    except (TypeError, ValueError, ArithmeticError) as error:
        raise PlanError(
            f"lr: the function cannot be asked for rounds 1 to {rounds} ({error}); expected a number above 0 for each"
        ) from None
    changes = [(number, after) for number, (before, after) in enumerate(pairwise(values), 2) if before != after]
    return _as_text([(1, values[0]), *changes])


def rate_at(rate: "float | str", round: int, rounds: int) -> float:
    """eta in round t = 1, 2, ... of a plan of this many rounds."""
    if not isinstance(rate, str):
        return rate
    if _is_named(rate):
        return _at(_named(rate), round, rounds)
    return [value for first, value in _steps(rate) if first <= round][-1]


def steps_of(rate: "float | str") -> list[tuple[int, float]] | None:
    """From which round on which rate holds; None for a rate that follows a formula.

    >>> steps_of("0.1,100:0.01"), steps_of(0.1), steps_of("cosine:0.1")
    ([(1, 0.1), (100, 0.01)], [(1, 0.1)], None)
    """
    if not isinstance(rate, str):
        return [(1, rate)]
    return None if _is_named(rate) else list(_steps(rate))


def text_of_steps(steps: list[tuple[int, float]]) -> "float | str":
    """What a plan keeps of such steps."""
    return _as_text(steps)


def _at(rate: Rate, round: int, rounds: int) -> float:
    if round <= rate.warmup:
        return rate.start * round / rate.warmup
    return rate.after_warmup(round - rate.warmup, rounds - rate.warmup)


def _is_named(text: str) -> bool:
    return text.partition(":")[0] in RATES or is_import(text, Rate)


@lru_cache
def _named(text: str) -> Rate:
    return _checked(make(text, Rate))  # type: ignore[type-abstract]


def _checked(rate: Rate) -> Rate:
    name = type(rate).__name__.lower()
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
            raise ValueError(_forms()) from None
    starts = [first for first, _ in steps]
    if starts[0] != 1 or starts != sorted(set(starts)):
        raise ValueError("rounds in rising order, the first value without one, as in '0.1,100:0.01'")
    return steps


def _as_text(steps: list[tuple[int, float]]) -> "float | str":
    (_, first), *later = steps
    return ",".join([repr(first), *(f"{start}:{value!r}" for start, value in later)]) if later else first


def _positive(number: float) -> float:
    if not isfinite(number) or number <= 0:
        raise ValueError(_forms())
    return number


def _require(rate: str, name: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise PlanError(f"lr: {rate} has {name} {value}; expected {expected}")
