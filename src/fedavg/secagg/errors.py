"""What can go wrong in a session, with a reason that programs can act on."""

from enum import StrEnum

from fedavg.errors import FedAvgError


class Fault(StrEnum):
    """Why a message was refused, a client left or a session was abandoned."""

    BAD_TERMS = "bad-terms"
    MALFORMED = "malformed"
    WRONG_SESSION = "wrong-session"
    OUT_OF_TURN = "out-of-turn"
    UNKNOWN_CLIENT = "unknown-client"
    DUPLICATE = "duplicate"
    BAD_SIGNATURE = "bad-signature"
    NOT_VOUCHED = "not-vouched"
    ALTERED_KEYS = "altered-keys"
    BAD_SHARE = "bad-share"
    LISTED_DEAD = "listed-dead"
    ALREADY_DEAD = "already-dead"
    LEFT_OUT = "left-out"
    TOO_FEW = "too-few"
    SECOND_REQUEST = "second-request"


class SecAggError(FedAvgError):
    """Secure aggregation cannot continue as asked."""

    def __init__(self, reason: Fault, message: str, culprit: int | None = None) -> None:
        """`culprit` is the client at fault, if that is known."""
        super().__init__(message)
        self.reason, self.culprit = reason, culprit


class TermsError(SecAggError):
    """The terms of a session are impossible or unsafe; raised before any key is made."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.BAD_TERMS, message)


class BadMessage(SecAggError):
    """One message was refused; the session continues without it."""


class ClientAborted(SecAggError):
    """The client has left the session for good and will answer nothing more in it."""


class SessionAbandoned(SecAggError):
    """The server has abandoned the session; nothing was learned from it."""
