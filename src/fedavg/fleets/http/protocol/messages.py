"""Every message of the protocol but the update itself: strict JSON to and from frozen dataclasses (docs/protocol.md).

A field's type, bounds and help text stand once, in its metadata: the parser, the writer and the JSON schemas are made
from them. Whatever does not fit is refused by name; nothing is converted, guessed or ignored.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields
from json import JSONDecoder, dumps
from typing import Any, Final, Literal, TypeVar

from fedavg.errors import FedAvgError

PROTOCOL: Final = 1
#: No message that `dump` writes is longer, in bytes; requests to a server are far smaller.
MAX_MESSAGE: Final = 128 * 1024
#: No message nests deeper than this; a parser that recurses is never shown more.
MAX_DEPTH: Final = 4
LARGEST: Final = 2**31 - 1

T = TypeVar("T")
RefusedReason = Literal["bad-json", "too-large", "bad-field"]


class MessageRefused(FedAvgError):
    """A message is not what the protocol says; `field` is the dotted path of the culprit, if it is one field."""

    def __init__(self, reason: RefusedReason, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.field = field


# What a field may hold. Each rule checks a value that JSON gave, and says the same as a JSON schema.


class Rule(ABC):
    @abstractmethod
    def check(self, value: object, path: str) -> object:
        """The value for the dataclass, or MessageRefused that names the path."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the values that `check` takes."""


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
    """A finite number. JSON does not tell 1 from 1.0 (some languages write one for the other): both are taken."""

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


#: JSON can write half of a surrogate pair, which is no character: a schema has no word for it.
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
    """32 bytes in base64, in the one way of writing them: the bits that are left over are zero."""

    pattern = "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]="

    def check(self, value: object, path: str) -> object:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            _refuse(value, path, "32 bytes in base64, 44 characters")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 44, "maxLength": 44, "pattern": f"^{self.pattern}$"}


@dataclass(frozen=True)
class Choice(Rule):
    names: tuple[str, ...]

    def check(self, value: object, path: str) -> object:
        return value if value in self.names else _refuse(value, path, f"one of {', '.join(self.names)}")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


@dataclass(frozen=True)
class Nullable(Rule):
    """A value or null. The field itself is never left out."""

    rule: Rule

    def check(self, value: object, path: str) -> object:
        return None if value is None else self.rule.check(value, path)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.rule.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class TableOf(Rule):
    """Names to numbers."""

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
_LINE = rf"[^\x00-\x1f{_UNSAFE}]"
_LINES = rf"[^\x00-\x08\x0b-\x1f{_UNSAFE}]"
_VISIBLE = Text("[!-~]", 1, 128, "visible ASCII without spaces")

ROUND: Final = Integer(1, LARGEST)
ATTEMPT: Final = Integer(0, LARGEST)
COUNT: Final = Integer(0, LARGEST)
#: Servers keep a table from 0 to the largest number that anybody asked for.
CLIENT: Final = Integer(0, 2**20 - 1)
NUMBERS: Final = Integer(1, 2**40)
SHA256: Final = Text("[0-9a-f]", 64, 64, "a SHA-256 in lower-case hex")
PLAN_DIGEST: Final = Text("[0-9a-f]", 16, 64, "a plan's digest in lower-case hex")
SESSION: Final = Text("[0-9a-f]", 32, 32, "16 bytes in lower-case hex")
EPOCH: Final = Text("[A-Za-z0-9_-]", 1, 64, "letters, digits, - and _")
TOKEN: Final = Text("[!-~]", 1, 1024, "visible ASCII without spaces")
SECONDS: Final = Number(0, 7 * 86_400)
HOURS: Final = Number(0, 10 * 366 * 24, above=True)
TOKEN_ID: Final = Text("[0-9a-f]", 16, 16, "the id of a token, lower-case hex")
SETTINGS: Final = TableOf(Text("[a-z0-9_]", 1, 32, "a-z, 0-9 and _"), Number(-1e12, 1e12), 16)
METRICS: Final = TableOf(Text("[a-z_]", 1, 32, "a-z and _"), Number(-1e12, 1e12), 16)


#: What the field of that name says, in each answer that has it.
COUNTED: Final = "whether the update in `holding` is part of its round; null if there is none or it is not known"


def item(rule: Rule, help: str) -> Any:
    """A field of a message."""
    return field(metadata={"rule": rule, "help": help})


def tag(name: str) -> Any:
    """The field by which the kinds of one answer are told apart."""
    return field(init=False, default=name, metadata={"rule": Choice((name,)), "help": "the kind of answer"})


@dataclass(frozen=True)
class EnrolRequest:
    """POST /v1/enrol: a new client shows its invitation and the public key that it will sign with."""

    token: str = item(TOKEN, "the invitation, as the operator gave it")
    key: str = item(Key(), "the client's Ed25519 public key, base64")
    examples: int = item(Integer(0, 2**31), "n_k, how many examples the client holds")
    name: str = item(Text(_LINE, 0, 64, "printable text"), "a name for the operator to see")
    client: int | None = item(Nullable(CLIENT), "the client number asked for, or null for any")
    task: str = item(_VISIBLE, "the task that is installed on the client")
    protocol: int = item(Integer(1, 65_535), "the version of the protocol that the client speaks")


@dataclass(frozen=True)
class Enrolled:
    """The answer to EnrolRequest."""

    client: int = item(CLIENT, "k, the client's number")
    epoch: str = item(EPOCH, "the server's epoch, to sign with")
    plan: str = item(Text(_LINES, 1, 16_384, "printable text"), "the plan of the run, TOML")
    plan_digest: str = item(PLAN_DIGEST, "identifies the run")


@dataclass(frozen=True)
class Eligibility:
    """What decides if a device may be asked to work now (§1 of the paper: charging, unmetered, idle)."""

    charging: bool = item(Flag(), "on mains power or a full battery")
    unmetered: bool = item(Flag(), "on a network that costs nothing by the byte")
    idle: bool = item(Flag(), "not in use")


@dataclass(frozen=True)
class Holding:
    """An update that the client has ready and keeps until its round is committed."""

    round: int = item(ROUND, "the round that it was made in")
    attempt: int = item(ATTEMPT, "the attempt at that round")
    model: str = item(SHA256, "the model that it was trained from")


@dataclass(frozen=True)
class PollRequest:
    """POST /v1/poll: is there work?"""

    eligible: Eligibility = item(Nested(Eligibility), "whether the device may work now")
    holding: Holding | None = item(Nullable(Nested(Holding)), "the update that the client still keeps, or null")
    wait_s: float = item(Number(0, 60), "how long the server may hold the request open")


#: Attempts at an evaluation are numbered from here on, so that nobody takes an answer for an update.
JUDGING: Final = 1 << 30


class PollAnswer:
    """The answer to PollRequest, one of five: `WorkOffer`, `JudgeOffer`, `MaskAnswer`, `WaitAnswer`, `DoneAnswer`."""


@dataclass(frozen=True)
class WorkOffer(PollAnswer):
    """Train from this model, and upload the update before the deadline."""

    type: Literal["work"] = tag("work")
    round: int = item(ROUND, "t, the round")
    attempt: int = item(ATTEMPT, "the attempt at that round")
    model: str = item(SHA256, "the model to start from: GET /v1/models/{model}")
    numbers: int = item(NUMBERS, "P, how many numbers the model has")
    deadline_s: float = item(SECONDS, "seconds left for the upload")
    epochs: int = item(Integer(1, LARGEST), "E, local epochs")
    batch: float | None = item(Nullable(Number(1, LARGEST, whole=True)), "B, the batch size; null is all local data")
    lr: float = item(Number(0, 1e12, above=True), "eta, the learning rate of this round")
    settings: dict[str, float] = item(SETTINGS, "the algorithm's further numbers by name")
    upload_token: str | None = item(Nullable(TOKEN), "if not null: upload without a signature, with this token")
    session: str | None = item(Nullable(SESSION), "if not null: secure aggregation; the name of the session, hex")
    invited: int = item(COUNT, "how many clients are invited to the round")
    changes: int = item(COUNT, "n, how many of the model's last changes are there: GET /v1/models/{model}/changes/{n}")
    counted: bool | None = item(Nullable(Flag()), COUNTED)


@dataclass(frozen=True)
class JudgeOffer(PollAnswer):
    """Judge this model on the examples that the client holds out, and upload the sums before the deadline."""

    type: Literal["judge"] = tag("judge")
    round: int = item(ROUND, "t, the round that the model came out of")
    attempt: int = item(ATTEMPT, "names the evaluation, as an attempt at that round that no training has")
    model: str = item(SHA256, "the model to judge: GET /v1/models/{model}")
    numbers: int = item(NUMBERS, "P, how many numbers the model has")
    deadline_s: float = item(SECONDS, "seconds left for the upload")
    upload_token: str | None = item(Nullable(TOKEN), "if not null: upload without a signature, with this token")
    session: str | None = item(Nullable(SESSION), "if not null: secure aggregation; the name of the session, hex")
    invited: int = item(COUNT, "how many clients are asked to judge it")


@dataclass(frozen=True)
class MaskAnswer(PollAnswer):
    """The next message of a session of secure aggregation is there: GET and answer it."""

    type: Literal["mask"] = tag("mask")
    round: int = item(ROUND, "t, the round")
    attempt: int = item(ATTEMPT, "the attempt at that round")
    session: str = item(SESSION, "the name of the session, hex")
    step: int = item(Integer(1, 8), "which message of the session it is")


@dataclass(frozen=True)
class WaitAnswer(PollAnswer):
    """Nothing to do now."""

    type: Literal["wait"] = tag("wait")
    retry_after_s: float = item(SECONDS, "seconds until the next poll")
    committed: int = item(COUNT, "the last round that is committed; updates up to it need not be kept")
    counted: bool | None = item(Nullable(Flag()), COUNTED)


@dataclass(frozen=True)
class DoneAnswer(PollAnswer):
    """The run is over."""

    type: Literal["done"] = tag("done")
    round: int = item(COUNT, "the last round")
    model: str = item(SHA256, "the final model")
    counted: bool | None = item(Nullable(Flag()), COUNTED)


#: The answers that tell a client what became of the update that it holds.
Settling = WorkOffer | WaitAnswer | DoneAnswer


@dataclass(frozen=True)
class UpdateAnswer:
    """The answer to an upload."""

    accepted: bool = item(Flag(), "true if the update counts in the round")
    duplicate: bool = item(Flag(), "true if it had been taken before; it counts once")


#: What `ReportRequest.reason` may say, and what it means. A fixed list: nobody fills a server's counters with names.
REPORTS: Final[dict[str, str]] = {
    "training-failed": "the model could not be fetched or trained",
    "update-refused": "the server has refused the update",
    "session-left": "the session of secure aggregation was not as it should be",
    "out-of-time": "the deadline of the offer is over",
    "bad-offer": "the offer asks for more than the plan or the device's own task implies",
    "bad-plan": "the plan can not be used here",
    "no-secagg": "the device asks for secure aggregation, and the plan has none",
    "unsigned-session": "the device asks for signed sessions, and those of the plan are not",
    "no-authority": "sessions are signed, and the device has no authority or no voucher",
    "small-cohort": "fewer clients are invited than the device asks for",
    "weak-privacy": "the device asks for more privacy than the plan gives",
    "budget-spent": "another update would cost more privacy than the device may spend",
    "many-epochs": "more local epochs than the device allows",
    "many-rounds": "more rounds a day than the device allows",
    "round-opened": "the device has opened a sum of this round already, and opens no second one",
}


@dataclass(frozen=True)
class ReportRequest:
    """POST /v1/report: the client will not upload, so that nobody waits for it."""

    round: int = item(COUNT, "the round of the offer; 0 if it is the plan that is declined")
    attempt: int = item(ATTEMPT, "the attempt of the offer")
    kind: Literal["failed", "declined"] = item(Choice(("failed", "declined")), "failed while training, or never began")
    reason: str = item(Choice(tuple(REPORTS)), "why, for programs")
    blames: int | None = item(Nullable(CLIENT), "the client that spoiled a session of secure aggregation, or null")
    detail: str = item(Text(_LINES, 0, 500, "printable text"), "what went wrong, without personal data")


@dataclass(frozen=True)
class NewToken:
    """POST /admin/tokens: an invitation for new clients; asks for the admin token."""

    uses: int | None = item(Nullable(Integer(1, LARGEST)), "how many clients may use it; null for any number")
    label: str = item(Text(_LINE, 0, 64, "printable text"), "what it is for, for the operator")
    client: int | None = item(Nullable(CLIENT), "the client number that it is for, or null for any")
    hours: float | None = item(Nullable(HOURS), "how long it is good for; null for ever")


@dataclass(frozen=True)
class Selection:
    """POST /admin/clients/revoke and /admin/clients/approve: the clients that all of this is true of."""

    client: int | None = item(Nullable(CLIENT), "this client, or null")
    token: str | None = item(Nullable(TOKEN_ID), "those that came by this token (its id), or null")
    address: str | None = item(Nullable(_VISIBLE), "those that enrolled from this address or network, or null")
    newer_than_h: float | None = item(Nullable(HOURS), "those that enrolled within so many hours, or null")
    older_than_h: float | None = item(Nullable(HOURS), "those that enrolled longer ago than that, or null")


@dataclass(frozen=True)
class Problem:
    """The body of every answer of 400 and above."""

    error: str = item(Text("[a-z0-9-]", 1, 64, "a-z, 0-9 and -"), "the reason, for programs")
    detail: str = item(Text(_LINES, 0, 1000, "printable text"), "the reason, for people")
    epoch: str | None = item(Nullable(EPOCH), "the epoch to sign with, if that was the mistake")


#: What `Problem.error` may say, with its HTTP status; a refused update frame (422) says its `wire.UpdateFault`.
PROBLEMS: Final[dict[str, int]] = {
    "bad-json": 400,
    "bad-field": 400,
    "bad-request": 400,
    "wrong-protocol": 400,
    "malformed": 401,
    "bad-signature": 401,
    "body-mismatch": 401,
    "stale-epoch": 401,
    "replayed": 401,
    "too-old": 401,
    "admin-token": 401,
    "revoked": 403,
    "token-unknown": 403,
    "token-used": 403,
    "token-expired": 403,
    "upload-token-unknown": 403,
    "not-invited": 403,
    "no-such-path": 404,
    "no-such-model": 404,
    "no-such-message": 404,
    "wrong-method": 405,
    "too-slow": 408,
    "number-taken": 409,
    "fleet-full": 409,
    "number-too-large": 409,
    "wrong-task": 409,
    "wrong-round": 409,
    "round-closed": 409,
    "upload-under-way": 409,
    "storage-refused": 409,
    "session-refused": 409,
    "too-large": 413,
    "content-encoding": 415,
    "bad-range": 416,
    "too-often": 429,
    "busy": 503,
    "storage": 503,
}

MESSAGES: Final = (
    EnrolRequest,
    Enrolled,
    PollRequest,
    PollAnswer,
    UpdateAnswer,
    ReportRequest,
    NewToken,
    Selection,
    Problem,
)
_VARIANTS: Final[dict[type, tuple[type, ...]]] = {
    PollAnswer: (WorkOffer, JudgeOffer, MaskAnswer, WaitAnswer, DoneAnswer)
}


def parse(kind: type[T], body: bytes, limit: int) -> T:
    """The message of this kind that the bytes hold; anything else is MessageRefused."""
    if len(body) > limit:
        raise MessageRefused("too-large", f"got a message of {len(body)} bytes; expected at most {limit}")
    message = _build(kind, _strict_json(body), "")
    assert isinstance(message, kind)
    return message


def dump(message: object) -> bytes:
    """The message as JSON; one that `parse` would not take is refused here already."""
    values = asdict(message)  # type: ignore[call-overload]
    _build(type(message), values, "")
    return dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def schema(kind: type) -> dict[str, Any]:
    """The JSON schema of a message, with nothing left open."""
    if kind in _VARIANTS:
        return {"oneOf": [schema(variant) for variant in _VARIANTS[kind]], "description": kind.__doc__}
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
    """A text made fit for a `detail`: unsafe characters become '?', and what is too long is cut."""
    return _HALF_PAIR.sub("?", re.sub(f"(?!{_LINES}).", "?", text[:limit], flags=re.DOTALL))


def _build(kind: type, value: object, path: str) -> object:
    if not isinstance(value, dict):
        return _refuse(value, path, "an object")
    variants = _VARIANTS.get(kind)
    if variants:
        kind = _variant(variants, value, path)
    specs = fields(kind)
    _check_names(value, [spec.name for spec in specs], path)
    checked = {spec.name: spec.metadata["rule"].check(value[spec.name], _join(path, spec.name)) for spec in specs}
    return kind(**{spec.name: checked[spec.name] for spec in specs if spec.init})


def _check_names(value: dict[str, object], known: list[str], path: str) -> None:
    """Each known field is there, and no other."""
    for name in [name for name in value if name not in known]:
        _refuse(value[name], _join(path, _shown(name)), f"no such field; known are {', '.join(known)}")
    for where in [_join(path, name) for name in known if name not in value]:
        raise MessageRefused("bad-field", f"{where}: is missing; expected {', '.join(known)}", where)


def _variant(variants: tuple[type, ...], value: dict[str, object], path: str) -> type:
    by_tag = {variant.__dataclass_fields__["type"].default: variant for variant in variants}  # type: ignore[attr-defined]
    Choice(tuple(by_tag)).check(value.get("type"), _join(path, "type"))
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
#: Possessive, and taking a string without an end as well: each character is looked at once, whatever the text.
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refuse(value: object, path: str, expected: str) -> object:
    if not path:
        raise MessageRefused("bad-json", f"got {_shown(value)}; expected {expected}")
    raise MessageRefused("bad-field", f"{path}: got {_shown(value)}; expected {expected}", path)


def _shown(value: object) -> str:
    """A value of a stranger's making, short and printable."""
    text = value if isinstance(value, str) else repr(value)
    return ascii(text[:80])[1:-1]
