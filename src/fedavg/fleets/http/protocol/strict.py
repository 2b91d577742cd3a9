"""Strict JSON to and from frozen dataclasses. Knows no message of the protocol: those are in `messages.py`.

A field's type, bounds and help text are written once, in its metadata: the parser, the writer and the JSON schemas are
made from them. An invalid field is refused by name; nothing is converted, guessed or ignored. The variants of an
answer are the subclasses of a class without fields; their `type` distinguishes them.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields
from json import JSONDecoder, dumps
from typing import Any, Final, Literal, TypeVar

from fedavg.errors import FedAvgError

#: No message nests deeper than this; deeper input never reaches a parser that recurses.
MAX_DEPTH: Final = 4

T = TypeVar("T")
MessageRefusal = Literal["bad-json", "too-large", "bad-field"]


class MessageRefused(FedAvgError):
    """A message violates the protocol; `field` is the dotted path of the field at fault, if it is one field."""

    def __init__(self, reason: MessageRefusal, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.field = field


# What a field may hold. Each rule checks a value from JSON, and states the same rule as a JSON schema.


class Rule(ABC):
    @abstractmethod
    def check(self, value: object, path: str) -> object:
        """The value for the dataclass, or MessageRefused that names the path."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the values that `check` accepts."""


@dataclass(frozen=True)
class Flag(Rule):
    def check(self, value: object, path: str) -> object:
        return value if isinstance(value, bool) else _refuse(value, path, "true or false")

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Integer(Rule):
    low: int
    high: int

    def check(self, value: object, path: str) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            _refuse(value, path, f"a whole number from {self.low} to {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number(Rule):
    """A finite number. JSON does not distinguish 1 from 1.0 (languages write either), so both are accepted."""

    low: float
    high: float
    above: bool = False  # low itself is not allowed
    whole: bool = False

    def check(self, value: object, path: str) -> object:
        # Python compares whole numbers of any length with floats exactly; NaN is in no interval.
        fits = isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high
        if not fits or (self.above and value == self.low) or (self.whole and value != int(value)):  # type: ignore[call-overload]
            kind = "a whole number" if self.whole else "a number"
            _refuse(value, path, f"{kind} {'above' if self.above else 'from'} {self.low:g} to {self.high:g}")
        return float(value)  # type: ignore[arg-type]

    def schema(self) -> dict[str, Any]:
        low = "exclusiveMinimum" if self.above else "minimum"
        return {"type": "integer" if self.whole else "number", low: self.low, "maximum": self.high}


#: JSON can write half of a surrogate pair, which is not a character; a JSON schema cannot express this.
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Text(Rule):
    """A text of `low` to `high` characters, each from a class such as '[a-z]'."""

    characters: str
    low: int
    high: int
    expected: str

    @property
    def pattern(self) -> str:
        return f"{self.characters}{{{self.low},{self.high}}}"

    def check(self, value: object, path: str) -> object:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value) or _HALF_PAIR.search(value):
            _refuse(value, path, f"{self.expected}, {self.low} to {self.high} characters")
        return value

    def schema(self) -> dict[str, Any]:
        return {
            "type": "string",
            "minLength": self.low,
            "maxLength": self.high,
            "pattern": f"^{self.characters}*$",
        }


@dataclass(frozen=True)
class Key(Rule):
    """32 bytes in canonical base64: the unused bits are zero."""

    pattern = "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]="

    def check(self, value: object, path: str) -> object:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            _refuse(value, path, "32 bytes in base64, 44 characters")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 44, "maxLength": 44, "pattern": f"^{self.pattern}$"}


@dataclass(frozen=True)
class OneOf(Rule):
    names: tuple[str, ...]

    def check(self, value: object, path: str) -> object:
        return value if value in self.names else _refuse(value, path, f"one of {', '.join(self.names)}")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


@dataclass(frozen=True)
class Nullable(Rule):
    """A value or null. The field itself is required."""

    rule: Rule

    def check(self, value: object, path: str) -> object:
        return None if value is None else self.rule.check(value, path)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.rule.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class ListOf(Rule):
    """A list of distinct texts."""

    item: Text
    most: int

    def check(self, value: object, path: str) -> object:
        if not isinstance(value, list) or not 1 <= len(value) <= self.most:
            return _refuse(value, path, f"a list of 1 to {self.most} texts")
        texts = [self.item.check(each, f"{path}[{place}]") for place, each in enumerate(value)]
        return texts if len(set(texts)) == len(texts) else _refuse(value, path, "each text once")

    def schema(self) -> dict[str, Any]:
        items = self.item.schema()
        return {"type": "array", "items": items, "minItems": 1, "maxItems": self.most, "uniqueItems": True}


@dataclass(frozen=True)
class TableOf(Rule):
    """An object from names to numbers."""

    name: Text
    value: Number
    most: int

    def check(self, value: object, path: str) -> object:
        if not isinstance(value, dict) or len(value) > self.most:
            return _refuse(value, path, f"an object of at most {self.most} numbers by name")
        for name in value:
            if not re.fullmatch(self.name.pattern, name):
                _refuse(name, path, f"names of {self.name.expected}, {self.name.low} to {self.name.high} characters")
        return {name: self.value.check(number, f"{path}.{name}") for name, number in value.items()}

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": self.name.schema(),
            "additionalProperties": self.value.schema(),
            "maxProperties": self.most,
        }


@dataclass(frozen=True)
class Nested(Rule):
    kind: type

    def check(self, value: object, path: str) -> object:
        return _build(self.kind, value, path)

    def schema(self) -> dict[str, Any]:
        return schema(self.kind)


#: Not safe to show: control characters, and marks that turn or hide text.
_UNSAFE = r"\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
LINE = rf"[^\x00-\x1f{_UNSAFE}]"
LINES = rf"[^\x00-\x08\x0b-\x1f{_UNSAFE}]"


def item(rule: Rule, help: str) -> Any:
    """A field of a message."""
    return field(metadata={"rule": rule, "help": help})


def tag(name: str) -> Any:
    """The field that distinguishes the variants of an answer."""
    return field(init=False, default=name, metadata={"rule": OneOf((name,)), "help": "the kind of answer"})


def parse(kind: type[T], body: bytes, limit: int) -> T:
    """The message of this kind in the bytes; raises MessageRefused for anything else."""
    if len(body) > limit:
        raise MessageRefused("too-large", f"got a message of {len(body)} bytes; expected at most {limit}")
    message = _build(kind, _strict_json(body), "")
    assert isinstance(message, kind)
    return message


def dump(message: object) -> bytes:
    """The message as JSON; a message that `parse` would refuse is refused here."""
    values = asdict(message)  # type: ignore[call-overload]
    _build(type(message), values, "")
    return dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def schema(kind: type) -> dict[str, Any]:
    """The JSON schema of a message; it allows no further fields."""
    variants: list[type] = kind.__subclasses__()
    if variants:
        return {"oneOf": [schema(variant) for variant in variants], "description": kind.__doc__}
    properties = {
        spec.name: spec.metadata["rule"].schema() | {"description": spec.metadata["help"]} for spec in fields(kind)
    }
    return {
        "type": "object",
        "description": kind.__doc__,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def printable(text: str, limit: int) -> str:
    """A text made safe for a `detail`: unsafe characters become '?', and a long text is cut."""
    return _HALF_PAIR.sub("?", re.sub(f"(?!{LINES}).", "?", text[:limit], flags=re.DOTALL))


def _build(kind: type, value: object, path: str) -> object:
    if not isinstance(value, dict):
        return _refuse(value, path, "an object")
    variants: list[type] = kind.__subclasses__()
    if variants:
        kind = _variant(variants, value, path)
    specs = fields(kind)
    _check_names(value, [spec.name for spec in specs], path)
    checked = {spec.name: spec.metadata["rule"].check(value[spec.name], _join(path, spec.name)) for spec in specs}
    return kind(**{spec.name: checked[spec.name] for spec in specs if spec.init})


def _check_names(value: dict[str, object], known: list[str], path: str) -> None:
    """Every known field is present, and no other."""
    for name in [name for name in value if name not in known]:
        _refuse(value[name], _join(path, _shown(name)), f"no such field; known are {', '.join(known)}")
    for where in [_join(path, name) for name in known if name not in value]:
        raise MessageRefused("bad-field", f"{where}: is missing; expected {', '.join(known)}", where)


def _variant(variants: list[type], value: dict[str, object], path: str) -> type:
    by_tag = {variant.__dataclass_fields__["type"].default: variant for variant in variants}  # type: ignore[attr-defined]
    OneOf(tuple(by_tag)).check(value.get("type"), _join(path, "type"))
    return by_tag[value["type"]]


def _strict_json(body: bytes) -> object:
    """JSON in UTF-8 without repeated names, without NaN and Infinity, and not nested too deep."""
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise MessageRefused("bad-json", f"got bytes that are not strict JSON: {_shown(str(error))}") from None


def _check_depth(text: str) -> None:
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name is repeated in an object")
    return values


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = JSONDecoder(object_pairs_hook=_no_repeats, parse_constant=_no_constant)
_BRACKET: Final = re.compile(r"[\[\]{}]")
#: Possessive, and also matches an unterminated string, so that each character is read once, whatever the text.
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refuse(value: object, path: str, expected: str) -> object:
    if not path:
        raise MessageRefused("bad-json", f"got {_shown(value)}; expected {expected}")
    raise MessageRefused("bad-field", f"{path}: got {_shown(value)}; expected {expected}", path)


def _shown(value: object) -> str:
    """An untrusted value, made short and printable."""
    text = value if isinstance(value, str) else repr(value)
    return ascii(text[:80])[1:-1]
