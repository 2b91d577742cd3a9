"""A round under secure aggregation: the hub carries a session's messages, and sees only masked vectors and their sum.

Clients learn of each phase by polling, as for other work: a client that has a message waiting is told so, fetches the
message, and puts its answer in the same place. A phase ends when every client asked has answered, or when its time is
up.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import numpy as np

from fedavg.secagg import Aggregate, BadMessage, Fault, ServerSession, SessionStep, parse
from fedavg.secagg.ring import DecodedSum, Encoding

#: Bytes of a message beyond the masked vector: keys, shares and lists of clients.
OVERHEAD: Final = 512 * 1024
#: How many phase times to wait for enough shares to open a sum.
LAST_PHASES: Final = 10


@dataclass
class SecureRound:
    """The session of one attempt. Not thread-safe: the hub's lock guards it."""

    session: ServerSession
    #: Seconds for each phase.
    phase_s: float
    deadline: float = 0.0
    inbox: dict[int, bytes] = field(default_factory=dict)
    bytes_up: dict[int, int] = field(default_factory=dict)
    bytes_down: int = 0
    #: The clients that had not answered when a phase was closed.
    silent: set[int] = field(default_factory=set)
    #: The messages of the last phase, until the session is on disk.
    held: dict[int, bytes] = field(default_factory=dict)
    #: When the last phase is abandoned: clients that have opened the sum cannot help to open another in this round.
    last_deadline: float = 0.0

    @classmethod
    def resumed(cls, saved: bytes, authority: bytes | None, phase_s: float) -> "SecureRound":
        """The session as it was just before its sum was opened."""
        session, messages = ServerSession.from_bytes(saved, authority)
        secure = cls(session, phase_s)
        secure.held = {k: message.to_bytes() for k, message in messages.items()}
        return secure

    def saved(self) -> bytes:
        return self.session.to_bytes()

    def __post_init__(self) -> None:
        self.deadline = monotonic() + self.phase_s

    @property
    def name(self) -> str:
        return self.session.terms.session.hex()

    @property
    def step(self) -> int:
        return int(self.session.phase)

    @property
    def first_phase(self) -> bool:
        return self.session.phase is SessionStep.KEYS

    @property
    def last_phase(self) -> bool:
        return self.session.phase is SessionStep.UNMASKING

    @property
    def longest_message(self) -> int:
        encoding = self.session.terms.encoding
        return encoding.length * encoding.dtype.itemsize + OVERHEAD

    def waits_for(self, k: int) -> bool:
        return not self.held and k in self.session.awaited

    def over(self, failed: Set[int]) -> bool:
        """Has every client that still can answered, or is the time of the phase up?"""
        if self.session.awaited <= failed:
            return True
        now = monotonic()
        return now >= self.deadline and (not self.last_phase or self.session.can_finish or now >= self.last_deadline)

    def receive(self, k: int, body: bytes | memoryview) -> None:
        """Take a client's answer; raises SecAggError if it is another client's, or not expected now."""
        message = parse(bytes(body))
        sender = getattr(message, "client", None)  # the server's messages have none
        if sender != k:
            raise BadMessage(Fault.UNKNOWN_CLIENT, f"client {k} sent a message in the name of {sender}")
        self.session.receive(message)
        self.bytes_up[k] = self.bytes_up.get(k, 0) + len(body)

    def advance(self) -> None:
        """Close the phase. The remaining clients get the next messages; those of the last phase are held back."""
        if monotonic() >= self.deadline:  # a client that still had time when the phase ended early was not silent
            self.silent |= self.session.awaited
        messages = {k: message.to_bytes() for k, message in self.session.advance().items()}
        self.inbox, self.held = ({}, messages) if self.last_phase else (messages, {})
        self.bytes_down += sum(map(len, messages.values()))
        self.deadline = monotonic() + self.phase_s

    def begin_last_phase(self) -> None:
        """Give out the messages of the last phase."""
        self.inbox, self.held = self.held, {}
        self.deadline = monotonic() + self.phase_s
        self.last_deadline = monotonic() + LAST_PHASES * self.phase_s

    def finish(self) -> Aggregate:
        return self.session.finish()


def implausible(
    decoded: DecodedSum, encoding: Encoding, examples: Sequence[int], bounds: Mapping[str, tuple[float, float]]
) -> str | None:
    """Why a sum cannot come from clients with these numbers of examples that kept to the terms; None if it can.

    A masked update cannot be inspected, so this is the only check: a client that stays within these bounds is believed.
    """
    most = sum(min(n, encoding.weight_cap) for n in examples)
    if not 0 < decoded.weight <= most * (1 + 1e-9):
        return f"the weights add up to {decoded.weight:g}; expected above 0 and at most {most:g}"
    if not 0 <= decoded.saturated <= decoded.count * (encoding.dimension + len(encoding.metrics)):
        return f"{decoded.saturated} numbers are said to be clipped; expected none below 0 nor more than there are"
    if not 0 <= decoded.capped <= decoded.count:
        return f"{decoded.capped} weights are said to be capped; expected none below 0 nor more than {decoded.count}"
    reach = decoded.count * encoding.weight_cap if encoding.wraps else decoded.weight  # noise may exceed the range
    limit = encoding.clip * reach + decoded.count * 2.0**-encoding.fraction_bits
    largest = float(np.abs(decoded.vector).max(initial=0.0))
    if largest > limit:
        return f"a number of the sum is {largest:g}; expected at most {limit:g}"
    for name, mean in decoded.metrics.items():
        low, high = bounds.get(name, (-np.inf, np.inf))
        if not low <= mean <= high:
            return f"the mean of {name} is {mean:g}; expected {low:g} to {high:g}"
    return None
