"""Every message of the protocol but the update itself, as frozen dataclasses (docs/protocol.md).

`strict.py` makes parser, writer and JSON schemas from the fields' rules.
"""

from dataclasses import dataclass
from typing import Final, Literal

from fedavg.fleets.http.protocol.strict import (
    LINE,
    LINES,
    Flag,
    Integer,
    Key,
    ListOf,
    Nested,
    Nullable,
    Number,
    OneOf,
    TableOf,
    Text,
    item,
    tag,
)

PROTOCOL: Final = 2
#: The most bytes that `dump` writes for a message; requests to a server are far smaller.
MAX_MESSAGE: Final = 128 * 1024
LARGEST: Final = 2**31 - 1

_VISIBLE = Text("[!-~]", 1, 128, "visible ASCII without spaces")

ROUND: Final = Integer(1, LARGEST)
ATTEMPT: Final = Integer(0, LARGEST)
COUNT: Final = Integer(0, LARGEST)
EXAMPLES: Final = Integer(0, 2**31)
#: A bound is needed: servers keep a table from 0 to the largest number that any client asked for.
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
METRICS: Final = TableOf(Text("[a-z0-9_.]", 1, 48, "a-z, 0-9, _ and ."), Number(-1e12, 1e12), 128)


RUN: Final = Integer(1, LARGEST)
PLAN: Final = Text(LINES, 1, 16_384, "printable text")

#: The help text of the field of that name, in each answer that has it.
COUNTED: Final = "whether the update in `holding` is part of its round; null if there is none or it is not known"


@dataclass(frozen=True)
class EnrolRequest:
    """POST /v1/enrol: a new client shows its invitation and the public key that it will sign with."""

    token: str = item(TOKEN, "the invitation, as the operator gave it")
    key: str = item(Key(), "the client's Ed25519 public key, base64")
    examples: int = item(EXAMPLES, "n_k, how many examples the client has")
    name: str = item(Text(LINE, 0, 64, "printable text"), "a name for the operator to see")
    client: int | None = item(Nullable(CLIENT), "the client number asked for, or null for any")
    tasks: list[str] = item(ListOf(_VISIBLE, 32), "the tasks that the client's owner allows, by their names in plans")
    protocol: int = item(Integer(1, 65_535), "the version of the protocol that the client speaks")


@dataclass(frozen=True)
class Enrolled:
    """The answer to EnrolRequest."""

    client: int = item(CLIENT, "k, the client's number")
    epoch: str = item(EPOCH, "the server's epoch, to sign with")
    run: int | None = item(Nullable(RUN), "the number of the run; null if the server has none at present")
    plan: str | None = item(Nullable(PLAN), "the plan of the run, TOML, or null")
    plan_digest: str | None = item(Nullable(PLAN_DIGEST), "identifies the plan, or null")


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
class Taken:
    """The run that a client has taken up."""

    run: int = item(RUN, "the number of the run")
    plan_digest: str = item(PLAN_DIGEST, "the plan that the client works by")


@dataclass(frozen=True)
class PollRequest:
    """POST /v1/poll: is there work?"""

    eligible: Eligibility = item(Nested(Eligibility), "whether the device may work now")
    examples: int = item(EXAMPLES, "n_k now, or when the update in `holding` was trained, whichever is more")
    holding: Holding | None = item(Nullable(Nested(Holding)), "the update that the client still keeps, or null")
    run: Taken | None = item(Nullable(Nested(Taken)), "the run that the client has taken up, or null")
    wait_s: float = item(Number(0, 60), "how long the server may hold the request open")


#: Attempts at an evaluation are numbered from here, so that their answers are never mistaken for updates.
JUDGING: Final = 1 << 30


class PollAnswer:
    """The answer to PollRequest, one of six: `PlanAnswer`, `WorkOffer`, `JudgeOffer`, `MaskAnswer`, `WaitAnswer`,
    `DoneAnswer`."""


@dataclass(frozen=True)
class PlanAnswer(PollAnswer):
    """Another run is offered, or the same by another plan: take it up, and poll again."""

    type: Literal["plan"] = tag("plan")
    run: int = item(RUN, "the number of the run")
    plan: str = item(PLAN, "the plan of the run, TOML")
    plan_digest: str = item(PLAN_DIGEST, "identifies the plan")


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
    round: int = item(ROUND, "t, the round that produced the model")
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
    more: bool = item(Flag(), "true if the server may have other runs: keep polling")
    counted: bool | None = item(Nullable(Flag()), COUNTED)


#: The answers that tell a client whether the update that it holds has counted.
Settling = WorkOffer | WaitAnswer | DoneAnswer


@dataclass(frozen=True)
class UpdateAnswer:
    """The answer to an upload."""

    accepted: bool = item(Flag(), "true if the update counts in the round")
    duplicate: bool = item(Flag(), "true if it had been accepted before; it counts once")


#: The values of `ReportRequest.reason` and their meanings. The list is fixed so that no client can invent names and
#: fill a server's counters.
REPORTS: Final[dict[str, str]] = {
    "training-failed": "the model could not be trained",
    "no-model": "the model could not be fetched, or is not what its SHA-256 says",
    "no-examples": "the device has no examples at present",
    "stopped": "the device was stopped before its work was done",
    "update-refused": "the server has refused the update",
    "blocked": "something between the device and the server has refused the update",
    "session-left": "the session of secure aggregation broke a rule",
    "out-of-time": "the deadline of the offer is over",
    "bad-offer": "the offer asks for more than the plan or the device's own task implies",
    "bad-plan": "the plan cannot be used here",
    "no-secagg": "the device requires secure aggregation, and the plan has none",
    "unsigned-session": "the device requires signed sessions, and the plan's are not signed",
    "no-authority": "sessions are signed, and the device has no authority or no voucher",
    "small-cohort": "fewer clients are invited than the device requires",
    "weak-privacy": "the device requires more privacy than the plan gives",
    "budget-spent": "another update would cost more privacy than the device may spend",
    "many-epochs": "more local epochs than the device allows",
    "many-rounds": "more rounds a day than the device allows",
    "round-opened": "the device has already opened a sum of this round, and opens no second one",
}


@dataclass(frozen=True)
class ReportRequest:
    """POST /v1/report: the client will not upload, so that nobody waits for it."""

    round: int = item(COUNT, "the round of the offer; 0 if it is the plan that is declined")
    attempt: int = item(ATTEMPT, "the attempt of the offer")
    kind: Literal["failed", "declined"] = item(OneOf(("failed", "declined")), "failed while training, or never started")
    reason: str = item(OneOf(tuple(REPORTS)), "why, for programs")
    blames: int | None = item(Nullable(CLIENT), "the client that spoiled a session of secure aggregation, or null")
    detail: str = item(Text(LINES, 0, 500, "printable text"), "what went wrong, without personal data")


@dataclass(frozen=True)
class NewToken:
    """POST /admin/tokens: an invitation for new clients; asks for the admin token."""

    uses: int | None = item(Nullable(Integer(1, LARGEST)), "how many clients may use it; null for any number")
    label: str = item(Text(LINE, 0, 64, "printable text"), "what it is for, for the operator")
    client: int | None = item(Nullable(CLIENT), "the client number that it is for, or null for any")
    hours: float | None = item(Nullable(HOURS), "how long it is valid; null: forever")


#: What an operator may be allowed: everything; to submit runs; to look.
OPERATE: Final = "operator"
SUBMIT: Final = "submitter"
VIEW: Final = "viewer"


@dataclass(frozen=True)
class NewRole:
    """POST /admin/roles: a token for somebody who operates the server too, or in part."""

    role: Literal["operator", "submitter", "viewer"] = item(OneOf((OPERATE, SUBMIT, VIEW)), "what its holder may do")
    label: str = item(Text(LINE, 1, 64, "printable text"), "who it is for: a name that no other such token has")
    hours: float | None = item(Nullable(HOURS), "how long it is valid; null: forever")


@dataclass(frozen=True)
class NewRun:
    """POST /admin/runs: a plan for the queue of a service."""

    plan: str = item(PLAN, "the plan of the run, TOML")
    name: str = item(Text(LINE, 0, 64, "printable text"), "a name for people to see")
    init: str | None = item(Nullable(SHA256), "the SHA-256 of the model that follows, to start from, or null")


@dataclass(frozen=True)
class Extension:
    """POST /admin/runs/{run}/extend: more rounds, or another learning rate from a round on; at least one of them."""

    rounds: int | None = item(Nullable(ROUND), "the new total number of rounds, or null for no change")
    lr: float | None = item(Nullable(Number(0, 1e12, above=True)), "the learning rate from `from_round` on, or null")
    from_round: int | None = item(Nullable(ROUND), "the first round of that rate; null for the next one")


@dataclass(frozen=True)
class Rollback:
    """POST /admin/runs/{run}/rollback: back to the state after an earlier round."""

    to_round: int = item(Integer(0, LARGEST), "the round from whose state the run continues; 0: from before the first")


@dataclass(frozen=True)
class Selection:
    """POST /admin/clients/revoke and /admin/clients/approve: the clients that all of this is true of."""

    client: int | None = item(Nullable(CLIENT), "this client, or null")
    token: str | None = item(Nullable(TOKEN_ID), "clients that joined with this token (its id), or null")
    address: str | None = item(Nullable(_VISIBLE), "clients that enrolled from this address or network, or null")
    newer_than_h: float | None = item(Nullable(HOURS), "clients that enrolled within this many hours, or null")
    older_than_h: float | None = item(Nullable(HOURS), "clients that enrolled longer ago than this many hours, or null")


@dataclass(frozen=True)
class Problem:
    """The body of every answer of 400 and above."""

    error: str = item(Text("[a-z0-9-]", 1, 64, "a-z, 0-9 and -"), "the reason, for programs")
    detail: str = item(Text(LINES, 0, 1000, "printable text"), "the reason, for people")
    epoch: str | None = item(Nullable(EPOCH), "the epoch to sign with, if that was the mistake")


#: The values of `Problem.error` and their HTTP status; a refused update frame (422) has its `wire.UpdateFault`.
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
    "wrong-role": 403,
    "token-unknown": 403,
    "token-used": 403,
    "token-expired": 403,
    "upload-token-unknown": 403,
    "not-invited": 403,
    "no-such-path": 404,
    "no-such-model": 404,
    "no-such-message": 404,
    "no-such-run": 404,
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
    "run-refused": 409,
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
    NewRole,
    NewRun,
    Extension,
    Rollback,
    Selection,
    Problem,
)
