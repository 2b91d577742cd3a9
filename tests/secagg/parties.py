"""Small sessions for the tests: terms, identities, inputs, and a session driven to a phase."""

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedavg import seeds
from fedavg.secagg import (
    ClientSession,
    Encoding,
    ServerSession,
    SessionMessage,
    SessionStep,
    Signing,
    Terms,
    answer,
    parse,
)
from fedavg.secagg.identity import vouch


def small_terms(clients, dimension=5, bits=32, **changes):
    encoding = Encoding(clients, dimension, clip=1.0, weight_cap=100, metrics=("loss",), bits=bits)
    values = {"session": b"sixteen bytes ok", "round": 3, "model": sha256(b"model").digest(), "encoding": encoding}
    return Terms(**values | changes)


AUTHORITY = Ed25519PrivateKey.from_private_bytes(sha256(b"the authority").digest())


def make_identities(clients, authority=AUTHORITY):
    """Keys of which each client has one, all vouched for."""
    keys = {client: Ed25519PrivateKey.from_private_bytes(sha256(b"%d" % client).digest()) for client in clients}
    public = authority.public_key().public_bytes_raw()
    return {c: Signing(key, vouch(authority, key.public_key().public_bytes_raw()), public) for c, key in keys.items()}


def random_ring(terms, client):
    """Any ring elements at all: exactness must not depend on what they stand for."""
    drawn = seeds.rng(1, terms.round, client, "ring").integers(0, 2**63, terms.encoding.length, np.uint64)
    return (drawn * np.uint64(3)).astype(terms.encoding.dtype)


def plain_sum(terms, clients):
    return sum(
        (random_ring(terms, client) for client in clients), np.zeros(terms.encoding.length, terms.encoding.dtype)
    )


@dataclass
class Party:
    """A session that the test can stop anywhere: the server, its clients, and what each was last sent."""

    server: ServerSession
    clients: dict[int, ClientSession]
    inbox: dict[int, SessionMessage | None]

    def reply(self, client):
        return answer(self.clients[client], self.inbox[client], lambda: random_ring(self.server.terms, client))

    def phase(self, silent=()):
        """Everyone but the silent answers; then the phase is closed (the last one: finished)."""
        for client in sorted(self.server.awaited - set(silent)):
            self.server.receive(parse(self.reply(client).to_bytes()))
        if self.server.phase is SessionStep.UNMASKING:
            return self.server.finish()
        self.inbox = {c: parse(message.to_bytes()) for c, message in self.server.advance().items()}
        return None

    def until(self, phase, silent=None):
        """Run up to a phase; `silent` says who drops in which earlier one."""
        while self.server.phase < phase:
            self.phase((silent or {}).get(self.server.phase, ()))
        return self


def party(terms, invited=None):
    invited = list(range(terms.encoding.clients)) if invited is None else invited
    identities = make_identities(invited) if terms.signed else None
    authority = identities[invited[0]].authority if identities else None
    clients = {c: ClientSession(terms, c, identities and identities[c]) for c in invited}
    return Party(ServerSession(terms, invited, authority), clients, dict.fromkeys(invited))
