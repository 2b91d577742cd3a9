"""The settings of a part as an object is given them: a value of the wrong type is refused by its name.

Only settings that are declared as plain values are looked at: numbers, texts, flags, None.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

#: In words, what a setting may be that is declared so.
_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number", float: "a number", str: "a text", bool: "True or False", NoneType: "None",
}  # fmt: skip


def wrong_type(part: type, given: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    """Which value does not have the type of the part's field; None if all do. `given` are by place, as in a call."""
    hints = _hints(part)
    for name, value in [*zip(hints, given, strict=False), *named.items()]:  # too many are Python's to refuse
        expected = _expected(hints.get(name))
        if expected and not any(_is_a(value, each) for each in _alternatives(hints[name])):
            return f"{name} is {brief(value)}; expected {expected}"
    return None


def brief(value: object) -> str:
    """One line, however large the value."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:96]} ..."


@lru_cache(maxsize=512)
def _hints(part: type) -> dict[str, Any]:
    """What each field of a dataclass is declared as, in order; Any where that cannot be read."""
    if not is_dataclass(part):
        return {}
    try:
        hints = get_type_hints(part)
    except Exception:  # a name that only type checkers import
        hints = {}
    return {spec.name: hints.get(spec.name, Any) for spec in fields(part) if spec.init}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _expected(hint: Any) -> str | None:
    """None if a setting is declared as anything but plain values."""
    kinds = _alternatives(hint)
    if not all(kind in _WORDS for kind in kinds):
        return None
    return " or ".join(_WORDS[kind] for kind in kinds if not (kind is int and float in kinds))


def _is_a(value: object, kind: Any) -> bool:
    """numpy's numbers and flags are some too."""
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)
