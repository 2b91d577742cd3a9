"""The parts of a plan, and the one way to write them: an algorithm, a codec, a stage, ... in three forms.

    FedProx(mu=0.1)                 an object, in Python
    fedprox:0.1, fedprox:mu=0.1     a name of the folder's registry, with settings after colons
    my_package.mine:MyProx:mu=0.1   installed code by its import name: a class, a function or a ready object

The settings are the fields of a frozen dataclass (or the parameters of a function), in order. `str(part)` is the text
of a part and reads back to an equal one. A class of a script (`__main__`), or one whose settings are no plain values,
has no text: `text_of` gives None. What a part learns only when the whole plan is known is a field made by `bound`, and
is no setting.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from fedavg.errors import PlanError
from fedavg.settings import brief, wrong_type

T = TypeVar("T")
P = TypeVar("P", bound="Pluggable")

#: What may be imported by name; None: everything that is installed. Devices allow only what their owner named.
_ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


class Pluggable:
    """A part of a plan that a user may replace. `kind` is the plan's word for it, as error messages show it."""

    kind: ClassVar[str]

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """Settings of the wrong type are refused before a part compares or multiplies them."""
        if wrong := wrong_type(cls, given, settings):
            raise PlanError(f"{cls.kind} {_registered(cls) or cls.__name__}: {wrong}")
        if cls.__init__ is object.__init__ and (given or settings):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return super().__new__(cls)

    @classmethod
    def registry(cls) -> Mapping[str, Any]:
        """The parts of this kind that have a name: classes, or ready objects."""
        raise NotImplementedError

    def __str__(self) -> str:
        return text_of(self) or repr(self)


def make(value: object, base: type[P]) -> P:
    """The part that a value of a plan stands for: itself, if it is one, or what its text names."""
    if isinstance(value, base):
        return value
    if not isinstance(value, str):
        raise PlanError(f"{base.kind}: got {_described(value, base)}")
    name, target, settings = _target(value.strip(), base)
    if isinstance(target, base):
        if settings:
            raise PlanError(f"{base.kind}: got '{value}'; '{name}' has no settings: expected '{name}'")
        return target
    part = _call(target, settings, value, base.kind, name)
    assert isinstance(part, base), "said so before it was called"
    return part


def checked(value: object, base: type[P]) -> "str | P":
    """What a plan keeps of a part: its text where it has one, else the object.

    A name is checked with its settings; installed code is imported only when the run is set up, so that a plan can be
    read where the code is not.
    """
    if isinstance(value, str) and is_import(value, base):
        return value
    part = make(value, base)
    return value if isinstance(value, str) else text_of(part) or part


def is_import(text: str, base: type[Pluggable]) -> bool:
    """True for `module:Name[:settings]`; a registered name is never one."""
    module, _, rest = text.strip().partition(":")
    words = [*module.split("."), rest.partition(":")[0]]
    return module not in base.registry() and module != "object" and all(word.isidentifier() for word in words)


def text_of(part: Pluggable) -> str | None:
    """How a plan file writes this part; None if no text reads back to an equal one."""
    ready = next((name for name, entry in part.registry().items() if entry is part), None)
    if ready is not None:
        return ready
    name, settings = _name_of(part), _written(part)
    if name is None or settings is None:
        return None
    text = ":".join([name, *settings])
    base = _base_of(type(part))
    try:
        again = make(text, base)
    except PlanError:
        return None
    return text if type(again) is type(part) and _values(again) == _values(part) else None


def parse_spec(text: object, registry: Mapping[str, type[T]], what: str) -> T:
    """The object that a text names in a closed registry; raises a PlanError that says what was expected."""
    name, *settings = str(text).split(":")
    if name not in registry:
        raise PlanError(f"{what}: got '{text}'; expected one of {', '.join(usage(registry))}")
    return _call(registry[name], settings, str(text), what, name)


def bound(default: Any) -> Any:
    """A field that is not written in a plan: filled in from it by the object itself."""
    return field(default=default, repr=False, metadata={"bound": True})


def usage(registry: Mapping[str, Any]) -> list[str]:
    """How each name of a registry is written, with its settings."""
    return [_usage(name, kind) for name, kind in registry.items()]


def written(name: str, settings: object) -> str:
    """A name with the settings of a dataclass that are not at their defaults, each by its name."""
    values = ((spec, getattr(settings, spec.name)) for spec in _settings(type(settings)))
    return ":".join([name, *(f"{spec.name}={_shown(value)}" for spec, value in values if value != spec.default)])


def choices(target: type) -> dict[str, tuple[str, ...]]:
    """The values of each setting that has a closed set of them, the default first."""
    closed = (spec for spec in _settings(target) if get_origin(spec.hint) is Literal)
    return {spec.name: tuple(dict.fromkeys((spec.default, *get_args(spec.hint)))) for spec in closed}


@contextmanager
def importing_only(names: Iterable[str]) -> Iterator[None]:
    """Within it, code is imported by name only from these packages (and their modules)."""
    token = _ALLOWED.set(frozenset(names))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


# From text to part


def _target(text: str, base: type[P]) -> tuple[str, Any, list[str]]:
    """The name, what it stands for, and the settings that follow."""
    name, *settings = text.split(":")
    if name in base.registry():
        return name, base.registry()[name], settings
    if name == "object":
        raise PlanError(
            f"{base.kind}: '{text}' stands for an object from Python, which text cannot hold; give the object itself, "
            f"as in fedavg.resume(run_dir, {base.kind}=...), or install its code and name it: 'module:Name'"
        )
    if not is_import(text, base):
        raise PlanError(f"{base.kind}: got '{text}'; expected {_expected(base)}")
    return f"{name}:{settings[0]}", _imported(name, settings[0], base), settings[1:]


def _imported(module: str, name: str, base: type[Pluggable]) -> Any:
    """An object of the base class, or what makes one; nothing else is ever called."""
    _check_allowed(module, name, base)
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # whatever a module trips over while it is imported
        reason = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise PlanError(
            f"{base.kind}: cannot import '{module}:{name}': {reason}; expected {_expected(base)}"
        ) from error
    if isinstance(found, base) or _makes(found, base):
        return found
    raise PlanError(
        f"{base.kind}: '{module}:{name}' is {type(found).__name__}; expected a fedavg.{base.__name__}: an object, a "
        f"class that derives from it, or a function that is declared to give one (-> {base.__name__})"
    )


def _check_allowed(module: str, name: str, base: type[Pluggable]) -> None:
    allowed = _ALLOWED.get()
    if allowed is not None and not any(module == one or module.startswith(f"{one}.") for one in allowed):
        raise PlanError(
            f"{base.kind}: the plan names the code '{module}:{name}', which this device does not allow; "
            f"if it is installed and trusted here: fedavg join --allow {module.partition('.')[0]}"
        )


def _makes(found: object, base: type[Pluggable]) -> bool:
    given = found if isinstance(found, type) else _hints(found).get("return") if inspect.isfunction(found) else None
    return isinstance(given, type) and issubclass(given, base)


def _call(target: Callable[..., T], settings: list[str], text: str, what: str, name: str) -> T:
    """The part, made with its settings; what does not fit is refused with the way it is written."""
    try:
        values = _read(target, settings)
        _signature(target).bind(**values)
    except (TypeError, ValueError):
        raise PlanError(f"{what}: got '{text}'; expected '{_usage(name, target)}'") from None
    try:
        return target(**values)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{what}: got '{text}'; expected '{_usage(name, target)}': {error}") from error


@dataclass(frozen=True)
class _Parameter:
    name: str
    hint: Any
    default: Any = MISSING


#: Parts are made in every round, and a class says what it takes in a tenth of a millisecond.
_signature = lru_cache(maxsize=256)(inspect.signature)


def _settings(target: Any) -> tuple[_Parameter, ...]:
    """What may be written after the name, in order."""
    return _found_settings(target)


@lru_cache(maxsize=256)
def _found_settings(target: Any) -> tuple[_Parameter, ...]:
    hints = _hints(target)
    if is_dataclass(target):
        specs = [spec for spec in fields(target) if spec.init and not spec.metadata.get("bound")]
        return tuple(_Parameter(spec.name, hints[spec.name], _default(spec)) for spec in specs)
    empty = inspect.Parameter.empty
    return tuple(
        _Parameter(p.name, hints.get(p.name, str), MISSING if p.default is empty else p.default)
        for p in _signature(target).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )


def _hints(target: Any) -> dict[str, Any]:
    try:
        plain_class = isinstance(target, type) and not is_dataclass(target)
        return get_type_hints(vars(target)["__init__"] if plain_class and "__init__" in vars(target) else target)
    except NameError as error:
        raise PlanError(f"the type hints of {target.__qualname__} cannot be read: {error}") from None


def _default(spec: Any) -> Any:
    return spec.default if spec.default_factory is MISSING else spec.default_factory()


def _read(target: Any, parts: list[str]) -> dict[str, object]:
    """Values by name; those without a name belong to the settings in order. A part within a part takes the rest."""
    known = {setting.name: setting for setting in _settings(target)}
    names = list(known)
    values: dict[str, object] = {}
    for place, part in enumerate(parts):
        key, equals, value = part.partition("=")
        name = key if equals else names[place] if place < len(names) else ""
        if name not in known or name in values:
            raise ValueError(part)
        hint = known[name].hint
        text = value if equals else part
        if isinstance(hint, type) and issubclass(hint, Pluggable):
            values[name] = make(":".join([text, *parts[place + 1 :]]), hint)
            break
        values[name] = _value(text, hint)
    return values


def _value(text: str, hint: Any) -> object:
    if get_origin(hint) in (Union, UnionType):
        choices = get_args(hint)
        if text == "none" and type(None) in choices:
            return None
        return _first(text, [choice for choice in choices if choice is not type(None)])
    if get_origin(hint) is Literal:
        return _first(text, []) if text not in get_args(hint) else text
    return _READERS[hint](text) if hint in _READERS else _first(text, [])


def _first(text: str, hints: list[Any]) -> object:
    for hint in hints:
        try:
            return _value(text, hint)
        except ValueError:
            continue
    raise ValueError(text)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_READERS: dict[Any, Callable[[str], object]] = {int: int, float: float, str: str, bool: _flag}


# From part to text


def _name_of(part: Pluggable) -> str | None:
    """The name in the registry, or the import name if the class can be imported by it."""
    kind = type(part)
    if name := _registered(kind):
        return name
    found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    importable = found is kind and kind.__module__ != "__main__"
    return f"{kind.__module__}:{kind.__qualname__}" if importable else None


def _registered(kind: type[Pluggable]) -> str | None:
    return next((name for name, entry in kind.registry().items() if entry is kind), None)


def _written(part: Pluggable) -> list[str] | None:
    """The settings that differ from their defaults: by place as far as none is left out, then by name."""
    if not _plain_dataclass(part):
        return None
    texts: list[str] = []
    for place, setting in enumerate(_settings(type(part))):
        value = getattr(part, setting.name)
        if setting.default is not MISSING and value == setting.default:
            continue
        text = _shown(value)
        if text is None:
            return None
        texts.append(text if len(texts) == place else f"{setting.name}={text}")
    return texts


def _plain_dataclass(part: object) -> bool:
    """A frozen dataclass all of whose fields are settings holds nothing that its text would lose."""
    kind = type(part)
    return (
        is_dataclass(kind)
        and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        and all(spec.init and spec.compare for spec in fields(kind))
    )


def _values(part: object) -> list[object]:
    return [getattr(part, setting.name) for setting in _settings(type(part))]


def _shown(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Pluggable):
        return text_of(value)
    return str(value) if isinstance(value, int | float | str) else None


def _base_of(kind: type[Pluggable]) -> type[Pluggable]:
    """The class that declares the kind of part."""
    return next(base for base in reversed(kind.__mro__) if issubclass(base, Pluggable) and "kind" in vars(base))


# What messages show


def _expected(base: type[Pluggable]) -> str:
    names = ", ".join(usage(base.registry()))
    return f"one of {names}, or 'module:Name' of installed code" if names else "'module:Name' of installed code"


def _described(value: object, base: type[Pluggable]) -> str:
    name = base.__name__
    if isinstance(value, type):
        what = f"the class {value.__name__}"
        remedy = f"an object: {value.__name__}(...)" if issubclass(value, base) else f"a fedavg.{name}"
        return f"{what}; expected {remedy}"
    names = "".join(f"{each}, " for each in list(base.registry())[:3])
    text = f"text: {names}... or 'module:Name'" if names else "text: 'module:Name'"
    return f"{brief(value)} of type {type(value).__name__}; expected a fedavg.{name}, or {text}"


def _usage(name: str, target: Any) -> str:
    if not callable(target) or isinstance(target, Pluggable):
        return name
    needed = [spec.name.upper() for spec in _settings(target) if spec.default is MISSING]
    closed = choices(target)
    optional = [
        f"[{spec.name}={'|'.join(closed.get(spec.name, (str(spec.default),)))}]"
        for spec in _settings(target)
        if spec.default is not MISSING
    ]
    return ":".join([name, *needed, *optional])
