"""What a sweep varies: the values of one option of the plan, as a list or a range of numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Final

import numpy as np

from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.plan.plan import default_of, option_names

_RANGE: Final = re.compile(r"([^:,]+):([^:,]+):(\d+)(log|lin)")
#: Options that a sweep sets itself, or that do not change the result.
_NOT_SWEPT: Final = {"seed": "use --seeds", "rounds": "a run of fewer rounds is the beginning of a longer one"}

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Axis:
    """One option and its values. A range also has its ends, for searches that draw between them."""

    name: str
    values: tuple[Any, ...]
    low: float | None = None
    high: float | None = None
    log: bool = False


def split_axis(text: str) -> tuple[str, str]:
    """OPTION=VALUES, as on the command line.

    >>> split_axis("lr=0.01:1:3log")
    ('lr', '0.01:1:3log')
    """
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise PlanError(f"--grid: got '{text}'; expected OPTION=VALUES, as in lr=0.03:0.3:7log or E=1,5")
    return name.strip(), values


def make_axis(name: str, values: str | Sequence[Any]) -> Axis:
    """An axis from a list of values (parts may be objects), or from text: `0.03:0.3:7log` (seven values on a
    logarithmic scale), `1:20:5lin`, `1,5`, `fedavg,scaffold`.

    >>> make_axis("lr", "0.01:1:3log").values
    (0.01, 0.1, 1.0)
    >>> make_axis("E", "1,5").values
    ('1', '5')
    """
    _check_name(name)
    if isinstance(values, str) and (match := _RANGE.fullmatch(values.strip())):
        return _range(name, *match.groups())
    chosen = tuple(part.strip() for part in values.split(",")) if isinstance(values, str) else tuple(values)
    if not chosen or "" in chosen:
        raise PlanError(f"--grid: got '{values}' for {name}; expected values, as in {name}=1,5")
    return Axis(name, chosen)


def _check_name(name: str) -> None:
    runtime = {spec.name: "it does not change the result" for spec in fields(Plan) if spec.metadata["runtime"]}
    if name not in option_names():
        raise PlanError(f"--grid: got option '{name}'; expected one of {', '.join(option_names())}")
    if reason := (_NOT_SWEPT | runtime).get(name):
        raise PlanError(f"--grid: got option '{name}', which is not swept: {reason}")


def _range(name: str, low: str, high: str, count: str, scale: str) -> Axis:
    try:
        ends, number = (float(low), float(high)), int(count)
    except ValueError:
        raise PlanError(
            f"--grid: got {name}={low}:{high}:{count}{scale}; expected numbers, as in {name}=0.03:0.3:7log"
        ) from None
    if not ends[0] < ends[1] or number < 2 or (scale == "log" and ends[0] <= 0):
        raise PlanError(
            f"--grid: got {name}={low}:{high}:{count}{scale}; expected LOW:HIGH:COUNT{scale} with LOW below HIGH, "
            "two values or more, and LOW above 0 on a logarithmic scale"
        )
    spaced = np.geomspace(*ends, number) if scale == "log" else np.linspace(*ends, number)
    values = tuple(dict.fromkeys(fitting(name, float(value)) for value in spaced))
    return Axis(name, values, *ends, log=scale == "log")


def fitting(name: str, value: float) -> float | int:
    """A number of a range in the option's form: three digits, or a whole number for options that are counts."""
    return round(value) if isinstance(default_of(name), int) else float(f"{value:.3g}")


def grid(axes: Sequence[Axis]) -> list[Settings]:
    """Every combination, the last axis fastest."""
    names = [axis.name for axis in axes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(f"--grid: got {twice[0]} twice; expected each option once, with all its values")
    return [tuple(zip(names, values, strict=True)) for values in product(*(axis.values for axis in axes))]


def axes_of(given: Mapping[str, str | Sequence[Any]]) -> list[Axis]:
    if not isinstance(given, Mapping):
        raise PlanError(f"grid: got {given!r}; expected values by the name of an option, as in {{'lr': [0.01, 0.1]}}")
    return [make_axis(name, values) for name, values in given.items()]
