"""The options of a plan: what each may be given as, and what the plan keeps of it.

A parser takes what TOML, a command line (always text) or Python gives, and says what it expected.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from math import inf, isfinite
from typing import Any, Final

from fedavg import specs
from fedavg.errors import PlanError
from fedavg.types import FederatedData, Schedule

Parser = Callable[[object], object]


def number(low: float, high: float, *, above: bool = False) -> Parser:
    """A finite number from low to high; with `above`, low itself is not allowed."""
    expected = f"a number {'above' if above else 'from'} {low:g}" + (f" to {high:g}" if high < inf else "")

    def parse(value: object) -> float:
        try:
            number = float(value) if not isinstance(value, bool) else inf  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ValueError(expected) from None
        if not isfinite(number) or not low <= number <= high or (above and number == low):
            raise ValueError(expected)
        return number

    return parse


def integer(low: int) -> Parser:
    def parse(value: object) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not text.removeprefix("-").isdecimal() or int(text) < low:
            raise ValueError(f"a whole number of at least {low}")
        return int(text)

    return parse


def batch(value: object) -> float:
    """A batch size; infinity means all local data."""
    if str(value).strip().lower() in {"inf", "∞"}:
        return inf
    try:
        return float(integer(1)(value))  # type: ignore[arg-type]
    except ValueError:
        raise ValueError("a whole number of at least 1, or inf (all local data in one batch)") from None


def scheduled(item: Parser) -> Parser:
    """One value, or values by round: '20,100:5' is 20 from round 1 on and 5 from round 100 on."""

    def step(part: str) -> tuple[int, float]:
        first, _, value = part.rpartition(":")
        return (int(str(integer(1)(first))) if first else 1), float(str(item(value)))

    def parse(value: object) -> float | Schedule:
        steps = value.steps if isinstance(value, Schedule) else tuple(step(part) for part in str(value).split(","))
        starts = [first for first, _ in steps]
        if starts[0] != 1 or starts != sorted(set(starts)):
            raise ValueError("rounds in rising order, the first value without one, as in '20,100:5'")
        return _whole(steps[0][1]) if len(steps) == 1 else Schedule(steps)

    return parse


def _whole(number: float) -> float:
    return int(number) if isfinite(number) else number


def flag_value(value: object) -> bool:
    if str(value).lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return str(value).lower() == "true"


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def choice(*names: str) -> Parser:
    def parse(value: object) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return str(value)

    return parse


@dataclass(frozen=True)
class Optional:
    """What another parser reads, or nothing."""

    parser: Parser

    def __call__(self, value: object) -> object:
        return None if value is None or value in ("", "none") else self.parser(value)


def any_number(value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = inf
    if not isfinite(number):
        raise ValueError("a finite number")
    return number


def _short(number: Any) -> str:
    """Without a fraction of zero, and with all the digits that it has."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def of_metric(value_of: Parser, of_accuracy: Parser | None = None) -> Parser:
    """A number, which belongs to the metric that matters most, or 'metric=number'."""

    def parse(value: object) -> object:
        name, equals, number = str(value).rpartition("=")
        if isinstance(value, str) and equals and (name != "accuracy" or of_accuracy is None):
            check = of_accuracy if of_accuracy and name == "clients.accuracy" else value_of
            return f"{name}={_short(check(number))}"
        return (of_accuracy or value_of)(number if equals else value)

    return parse


def judges(value: object) -> str:
    parts = {part.strip() for part in str(value).split(",")}
    if parts <= {"server", "clients"}:
        return ",".join(sorted(parts, reverse=True))
    if len(parts) > 1 or not parts <= {"auto", "none"}:
        raise ValueError("server, clients, 'server,clients', none, or auto (the server if it has a test set)")
    return parts.pop()


@dataclass(frozen=True)
class PartParser:
    """A part as `specs` writes it. Its base class is imported when first needed: PyTorch comes with it."""

    home: str
    name: str

    def base(self) -> type[specs.Pluggable]:
        found: type[specs.Pluggable] = getattr(import_module(self.home), self.name)
        return found

    def __call__(self, value: object) -> object:
        return specs.checked(value, self.base())


@dataclass(frozen=True)
class PartsParser:
    """Several parts: a list in Python and TOML, with commas between on the command line."""

    one: PartParser

    def base(self) -> type[specs.Pluggable]:
        return self.one.base()

    def __call__(self, value: object) -> tuple[object, ...]:
        given = [text.strip() for text in value.split(",")] if isinstance(value, str) else value
        if not isinstance(given, list | tuple):
            raise ValueError(f"a list of fedavg.{self.one.name} or of texts")
        return tuple(self.one(item) for item in given if item != "")


def liars(value: object) -> float | tuple[int, ...]:
    """A share of the clients, or the numbers of some."""
    listed = [part for part in value.split(",") if part.strip()] if isinstance(value, str) and "," in value else value
    try:
        if isinstance(listed, list | tuple):
            return tuple(sorted({int(str(integer(0)(part))) for part in listed}))
        share = number(0, 1)(listed)
    except ValueError:
        share = 1.0
    if share == 1.0:
        raise ValueError("a share of the clients from 0 to below 1, or a list of their numbers") from None
    return float(str(share))


#: The data of a plan whose server has none: clients have all of it, and the server not even a test set.
NO_DATA: Final = "none"


def data_value(value: object) -> object:
    from fedavg.data import DATASETS, canonical, is_named

    if value == NO_DATA:
        return value
    if isinstance(value, str) and is_named(value):
        return canonical(value)
    if isinstance(value, str) and not specs.is_import(value, FederatedData) and not value.startswith("object:"):
        names = ", ".join(dataset.usage for dataset in DATASETS.values())
        raise ValueError(
            f"one of {names}, 'module:Name' of installed FederatedData, FederatedData itself, or, for a server "
            f"without data, '{NO_DATA}'"
        )
    return specs.checked(value, FederatedData)  # type: ignore[type-abstract]


def masking(value: object) -> object:
    if value != "none":
        try:
            from fedavg.secagg.options import make_masking
        except ImportError as error:
            raise PlanError(f"secagg needs {error.name}; install it with: pip install 'fedavg[secagg]'") from None
        make_masking(str(value))
    return str(value)


def option(default: Any, parse: Parser, help: str, *, flag: str = "", runtime: bool = False) -> Any:
    """A field of the plan. `runtime` options say where and how fast a run goes; they cannot change its result."""
    return field(default=default, metadata={"parse": parse, "help": help, "flag": flag, "runtime": runtime})
