"""What the store returns, and how it refuses."""

from dataclasses import dataclass
from typing import Final, Literal

from fedavg.errors import FedAvgError

#: The most clients that one run can have: client numbers in messages are below this, and servers keep tables of them.
MOST_CLIENTS: Final = 2**20

EnrolmentRefusal = Literal[
    "token-unknown", "token-used", "token-expired", "number-taken", "number-too-large", "fleet-full", "revoked"
]


class StoreError(FedAvgError):
    """The database did not do what was asked; `retryable` says whether the same call may work later."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class Deposed(StoreError):
    """Another replica leads now: this one may no longer write what it decided as the leader."""


class EnrolRefused(FedAvgError):
    """A client may not enrol; `reason` is for machines, the message for people."""

    def __init__(self, reason: EnrolmentRefusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class RunRow:
    plan_toml: str
    plan_digest: str
    engine: str


@dataclass(frozen=True)
class TokenRow:
    """`uses` is how many are left, None for no limit; `client` is the number that the token is bound to, if any.

    `expires` is in seconds since 1970 by the server's clock, None for never; `used` is how many clients used it.
    """

    hash: bytes
    uses: int | None
    label: str
    client: int | None
    expires: int | None = None
    used: int = 0


@dataclass(frozen=True)
class ClientRow:
    k: int
    key: bytes
    examples: int
    name: str
    revoked: bool
    #: The hash of the token that it enrolled with, when (seconds since 1970) and from where it enrolled.
    token: bytes = b""
    enrolled: int = 0
    address: str = ""
    #: A client that waits for the operator's approval is never invited.
    approved: bool = True
    #: The tasks that its owner allows; None if not stated, which means any.
    tasks: tuple[str, ...] | None = None


def allows(client: ClientRow, task: str) -> bool:
    """Whether the client's owner allows the task; true if the owner stated no tasks."""
    return client.tasks is None or task in client.tasks


@dataclass(frozen=True)
class SubmittedRun:
    """A run of a service; `changes` are the changes made after it was submitted, oldest first."""

    number: int
    name: str
    plan_toml: str
    plan_digest: str
    #: incomplete (it waits for the model that it starts from), queued, running, paused, done, failed or cancelled.
    state: str
    #: Why it is in that state, if there is a reason.
    detail: str
    submitted: int
    by: str
    changes: tuple[dict[str, object], ...] = ()
    init_sha256: str | None = None


@dataclass(frozen=True)
class Change:
    """A change that an operator made to a run: after which round, when (seconds since 1970) and by which role."""

    what: str
    after_round: int
    at: int
    by: str
    entry: dict[str, object]


@dataclass(frozen=True)
class RoundRow:
    """An attempt at a round; `model_sha256` is the model that its cohort was given."""

    round: int
    attempt: int
    state: str
    cohort: tuple[int, ...]
    model_sha256: str


@dataclass(frozen=True)
class Counted:
    """The clients in a committed round, and its attempt."""

    attempt: int
    clients: frozenset[int]
