"""What an object is, as text that is the same in another process: how a plan counts a part that has no text of its own.

A class or a function of a user's own counts by its source, without comments and layout; what PyTorch and this package
bring counts by its name, since the run's record has their versions. What a function calls is not looked into: for a
task, the record of a run holds what it computes as well.
"""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from json import dumps
from textwrap import dedent
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import numpy as np

#: Packages whose code counts by its name.
_KNOWN: Final = ("builtins", "fedavg", "numpy", "torch")
#: How far objects within objects are followed.
_DEPTH: Final = 5


def identity(part: object) -> dict[str, str]:
    """What a part is, aspect by aspect: its class, and each thing that it was made with."""
    return {"class": _class(type(part)), **{name: _shown(value, 1) for name, value in _contents(part).items()}}


def digest(value: object) -> str:
    """A short name for plain values."""
    return blake2b(dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _contents(value: object) -> dict[str, Any]:
    """(A field that came later counts only where it is set: what was recorded before stays the same.)"""
    if is_dataclass(value):
        given = [(spec, getattr(value, spec.name)) for spec in fields(value)]
        return {spec.name: item for spec, item in given if not (spec.metadata.get("later") and item == spec.default)}
    return dict(getattr(value, "__dict__", {}))


def _shown(value: Any, depth: int) -> str:
    if depth > _DEPTH:
        return type(value).__qualname__
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item, depth + 1)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        items = [_shown(item, depth + 1) for item in value]
        return f"[{', '.join(items if isinstance(value, list | tuple) else sorted(items))}]"
    if isinstance(value, type):
        return _class(value)
    if callable(value) and not is_dataclass(value):
        return _callable(value, depth)
    return _object(value, depth)


def _object(value: Any, depth: int) -> str:
    if isinstance(value, np.ndarray) or type(value).__module__ == "torch":
        array = np.ascontiguousarray(value)
        return f"{array.dtype}{array.shape} {blake2b(array.tobytes(), digest_size=8).hexdigest()}"
    inside = ", ".join(f"{name}={_shown(item, depth + 1)}" for name, item in _contents(value).items())
    return f"{_class(type(value))}({inside})"


def _callable(value: Any, depth: int) -> str:
    if isinstance(value, partial):
        return f"partial({_shown([value.func, *value.args, value.keywords], depth + 1)})"
    if isinstance(value, MethodType):
        return f"{_shown(value.__func__, depth + 1)} of {_shown(value.__self__, depth + 1)}"
    if not isinstance(value, FunctionType):  # written in C, or an object that can be called
        name = getattr(value, "__qualname__", None)
        return f"{getattr(value, '__module__', '')}.{name}" if name else _object(value, depth)
    if _is_known(value):
        return f"{value.__module__}.{value.__qualname__}"
    closed = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    inside = _shown([closed, value.__defaults__, value.__kwdefaults__], depth + 1)
    return f"{value.__qualname__} {digest([_source(value), _names(value.__code__), inside])}"


def _class(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if _is_known(kind) else f"{name} {digest(_source(kind))}"


def _is_known(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in _KNOWN


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that the function around has not given a value yet
        return False


def _source(value: Any) -> str:
    """The code without comments and layout; for what was typed where no source is kept, the compiled form."""
    try:
        source = dedent(inspect.getsource(value))
    except (OSError, TypeError):
        functions = [value] if isinstance(value, FunctionType) else [f for f in vars(value).values() if callable(f)]
        return str([_names(function.__code__) for function in functions if isinstance(function, FunctionType)])
    try:
        return ast.unparse(ast.parse(source))
    except SyntaxError:  # a lambda in the middle of a statement
        return source


def _names(code: CodeType) -> list[object]:
    """What tells apart two lambdas of one line."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    plain = [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
    return [list(code.co_varnames), list(code.co_names), plain, inner]
