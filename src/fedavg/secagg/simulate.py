"""A whole session in one process, through the real bytes, with clients that drop out at given phases."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedavg.secagg.client import ClientSession, answer
from fedavg.secagg.errors import ClientAborted
from fedavg.secagg.identity import Signing, vouch
from fedavg.secagg.messages import parse
from fedavg.secagg.server import Aggregate, ServerSession, SessionStep
from fedavg.secagg.terms import Terms


@dataclass
class Costs:
    """Bytes and seconds of one party."""

    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class SimulatedSession:
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
        vector = (
            ring(client) if self.server.phase is SessionStep.INPUTS else _NO_VECTOR
        )  # training makes it: not metered
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


def fresh_identities(clients: Iterable[int]) -> dict[int, Signing]:
    """Identities vouched for by an authority made for this purpose."""
    authority = Ed25519PrivateKey.generate()
    public = authority.public_key().public_bytes_raw()
    keys = {client: Ed25519PrivateKey.generate() for client in clients}
    return {c: Signing(key, vouch(authority, key.public_key().public_bytes_raw()), public) for c, key in keys.items()}


def simulate(
    terms: Terms,
    invited: Iterable[int],
    ring: Callable[[int], np.ndarray],
    drops: Mapping[int, SessionStep] | None = None,
    identities: Mapping[int, Signing] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> SimulatedSession:
    """Run a session over `ring(client)`. A client in `drops` is silent from that phase on. `clock` meters the work.

    A signed session whose clients are given no identities gets fresh ones.
    """
    invited, drops = sorted(invited), drops or {}
    if terms.signed and identities is None:
        identities = fresh_identities(invited)
    authority = next(iter(identities.values())).authority if identities else None
    clients = {client: ClientSession(terms, client, identities[client] if identities else None) for client in invited}
    session = _Session(ServerSession(terms, invited, authority), clients, clock)
    inboxes: dict[int, bytes | None] = dict.fromkeys(invited)
    while True:
        for client in sorted(session.server.awaited):
            if session.server.phase < drops.get(client, SessionStep.OVER):
                reply = session.client_replies(client, inboxes[client], ring)
                if reply is not None:
                    session.server_receives(reply)
        if session.server.phase is SessionStep.UNMASKING:
            return SimulatedSession(session.server_finishes(), session.costs, session.server_seconds)
        inboxes = session.server_advances()
