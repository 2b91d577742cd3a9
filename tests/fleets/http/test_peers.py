"""What replicas ask each other, over real sockets: only a replica is answered, once, and only by whom it asked."""

from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256

import httpx2 as httpx
import pytest
import torch
from starlette.applications import Starlette

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.certs import make_certificates, server_context
from fedavg.fleets.http.server.gates import Answered
from fedavg.fleets.http.server.listener import Listener
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.replicas.parts import PartOfGroup
from fedavg.fleets.http.server.replicas.peers import OfReplica, PeerEndpoints, Peers, Silent
from fedavg.fleets.http.server.store.together import ReplicaRow

ASKING, ASKED = 5, 9
WORDS = [(3, 0.5, True), (4, 2.0, False)]
PART = PartOfGroup(torch.tensor([2**40, -1]), 2**41, [], {3: 1.5}, frozenset([3]))


class Pair:
    """A replica that asks and one that is asked."""

    def __init__(self, port, scheme, certificate):
        self.keys = {number: keys.ClientKey.generate() for number in (ASKING, ASKED)}
        self.port = port
        url = f"{scheme}://127.0.0.1:{port}"
        self.rows = {number: ReplicaRow(number, url, key.public, certificate) for number, key in self.keys.items()}
        self.peers = Peers(self.keys[ASKING], lambda: ASKING)

    @property
    def asked(self):
        return self.rows[ASKED]


@contextmanager
def pair(certificates=None):
    scheme = "https" if certificates else "http"
    app = Starlette()
    tls = server_context(certificates.server.certificate, certificates.server.key) if certificates else None
    listener = Listener(app, "127.0.0.1", 0, tls)
    two = Pair(listener.port, scheme, certificates.server.certificate.read_text() if certificates else None)

    async def known(number):
        return two.rows.get(number)

    guard = OfReplica(two.keys[ASKED], lambda: ASKED, known)
    parts = lambda round, attempt: [PART] if (round, attempt) == (2, 1) else None  # noqa: E731
    app.router.routes.extend(PeerEndpoints(guard, Answered(Requests(), lambda: "e"), lambda: WORDS, parts).routes)
    listener.start()
    try:
        yield two
    finally:
        two.peers.close()
        listener.stop()


@pytest.fixture
def two():
    with pair() as found:
        yield found


def test_words_and_parts_arrive_as_they_are(two):
    assert two.peers.present(two.asked) == WORDS
    (part,) = two.peers.parts(two.asked, 2, 1)
    assert (part.ring.tolist(), part.sources) == ([2**40, -1], {3})
    with pytest.raises(Silent, match="409"):
        two.peers.parts(two.asked, 2, 0)


def ask(two, number=ASKING, to=ASKED, counter=1, path="/internal/present", key=None):
    fields = keys.SignedFields("GET", path, str(number), str(to), counter, sha256(b"").hexdigest())
    headers = keys.headers(key or two.keys[ASKING], fields)
    return httpx.get(f"http://127.0.0.1:{two.port}{path}", headers=headers)


def test_a_request_is_answered_once_and_only_for_whom_it_was_signed(two):
    assert ask(two).status_code == 200
    assert ask(two).json()["error"] == "replayed"
    assert ask(two, to=ASKED + 1, counter=2).json()["error"] == "stale-epoch"
    assert ask(two, number=77, counter=3).json()["error"] == "bad-signature"
    assert ask(two, counter=4, key=keys.ClientKey.generate()).json()["error"] == "bad-signature"
    assert httpx.get(f"http://127.0.0.1:{two.port}/internal/present").status_code == 401


def test_an_answer_of_somebody_else_is_not_believed(two):
    stranger = replace(two.asked, key=keys.ClientKey.generate().public)
    with pytest.raises(Silent, match="it did not sign"):
        two.peers.present(stranger)


def test_nobody_at_the_address_is_told_apart_from_silence(two):
    with pytest.raises(Silent) as gone:
        two.peers.present(replace(two.asked, id=ASKED + 1, url="http://127.0.0.1:1"))
    assert gone.value.gone


def test_with_tls_only_the_certificate_in_the_database_is_trusted(tmp_path):
    made, other = (make_certificates(tmp_path / name, ["server.example"]) for name in ("a", "b"))
    with pair(made) as two:
        assert two.peers.present(two.asked) == WORDS, "whatever name it is for"
        with pytest.raises(Silent, match="certificate"), suppress(httpx.CloseError):
            two.peers.present(replace(two.asked, id=ASKED + 1, certificate=other.server.certificate.read_text()))
