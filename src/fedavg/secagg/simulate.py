"""A whole session in one process, through the real bytes, with clients that drop out where they are told to."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedavg.secagg.client import ClientSession, answer
from fedavg.secagg.errors import ClientAborted
from fedavg.secagg.identity import Identity
from fedavg.secagg.messages import parse
from fedavg.secagg.server import Aggregate, Phase, ServerSession
from fedavg.secagg.terms import Terms


@dataclass
class Costs:
    """Bytes and seconds of one party."""

    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The sum, what each client cost, and what the server spent."""

    aggregate: Aggregate
    clients: Mapping[int, Costs]
    server_seconds: float


class _Session:
    """The parties of a session and what they have cost so far."""

    def __init__(self, server: ServerSession, clients: dict[int, ClientSession], clock: Callable[[], float]) -> None:
        self.server, self._clients, self._clock = server, clients, clock
        self.costs = {client: Costs() for client in clients}
        self.server_seconds = 0.0

    def client_replies(self, client: int, received: bytes | None, ring: Callable[[int], np.ndarray]) -> bytes | None:
        """The client's bytes to the server; None if it has left the session."""
        vector = ring(client) if self.server.phase is Phase.INPUTS else _NO_VECTOR  # made by training: not metered
        costs, began = self.costs[client], self._clock()
        try:
            message = parse(received) if received is not None else None
            reply = answer(self._clients[client], message, lambda: vector).to_bytes()
        except ClientAborted:
            return None
        costs.seconds += self._clock() - began
        costs.bytes_up += len(reply)
        costs.bytes_down += len(received or b"")
        return reply

    def server_receives(self, data: bytes) -> None:
        began = self._clock()
        self.server.receive(parse(data))
        self.server_seconds += self._clock() - began

    def server_advances(self) -> dict[int, bytes | None]:
        began = self._clock()
        messages: dict[int, bytes | None] = {c: message.to_bytes() for c, message in self.server.advance().items()}
        self.server_seconds += self._clock() - began
        return messages

    def server_finishes(self) -> Aggregate:
        began = self._clock()
        aggregate = self.server.finish()
        self.server_seconds += self._clock() - began
        return aggregate


_NO_VECTOR: Final = np.empty(0)


def simulate(
    terms: Terms,
    invited: Iterable[int],
    ring: Callable[[int], np.ndarray],
    drops: Mapping[int, Phase] | None = None,
    identities: Mapping[int, Identity] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Outcome:
    """Run a session over `ring(client)`. A client in `drops` is silent from that phase on. `clock` meters the work."""
    invited, drops = sorted(invited), drops or {}
    peers = next(iter(identities.values())).peers if identities else None
    clients = {client: ClientSession(terms, client, identities[client] if identities else None) for client in invited}
    session = _Session(ServerSession(terms, invited, peers), clients, clock)
    inboxes: dict[int, bytes | None] = dict.fromkeys(invited)
    while True:
        for client in sorted(session.server.awaited):
            if session.server.phase < drops.get(client, Phase.OVER):
                reply = session.client_replies(client, inboxes[client], ring)
                if reply is not None:
                    session.server_receives(reply)
        if session.server.phase is Phase.UNMASKING:
            return Outcome(session.server_finishes(), session.costs, session.server_seconds)
        inboxes = session.server_advances()
