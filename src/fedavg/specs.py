"""`name:value:key=value`: how a plan names an algorithm, a codec or a stage together with its settings.

A registry maps names to frozen dataclasses; their fields are the settings, in order. 'clip:1.0' and 'clip:norm=1.0' are
the same. What a stage learns only when the whole plan is known is a field made by `bound`, and is no setting.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeVar, get_type_hints

from fedavg.errors import PlanError

T = TypeVar("T")


def parse_spec(text: object, registry: Mapping[str, type[T]], what: str) -> T:
    """The object that a text names; raises a PlanError that says what was expected."""
    name, *parts = str(text).split(":")
    if name not in registry:
        raise PlanError(f"{what}: got '{text}'; expected one of {', '.join(usage(registry))}")
    kind = registry[name]
    try:
        return kind(**_settings(kind, parts))
    except (TypeError, ValueError):
        raise PlanError(f"{what}: got '{text}'; expected '{_usage(name, kind)}'") from None


def bound(default: Any) -> Any:
    """A field that is not written in a plan: filled in from it by the object itself."""
    return field(default=default, repr=False, metadata={"bound": True})


def usage(registry: Mapping[str, type]) -> list[str]:
    """How each name of a registry is written, with its settings."""
    return [_usage(name, kind) for name, kind in registry.items()]


def _usage(name: str, kind: type) -> str:
    needed = [spec.name.upper() for spec in _written(kind) if spec.default is MISSING]
    optional = [f"[{spec.name}={spec.default}]" for spec in _written(kind) if spec.default is not MISSING]
    return ":".join([name, *needed, *optional])


def _written(kind: type) -> list[Field]:
    return [spec for spec in fields(kind) if not spec.metadata.get("bound")]


def _settings(kind: type, parts: list[str]) -> dict[str, object]:
    """Values by name; those without a name belong to the fields in order."""
    names = [spec.name for spec in _written(kind)]
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for place, part in enumerate(parts):
        key, equals, value = part.partition("=")
        name = key if equals else names[place] if place < len(names) else ""
        if name not in names or name in values:
            raise ValueError(part)
        values[name] = _READERS[hints[name]](value if equals else part)
    return values


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_READERS: dict[Any, Callable[[str], object]] = {int: int, float: float, str: str, bool: _flag}
