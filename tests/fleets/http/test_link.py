"""A device's way to its server, with a real server that misbehaves as told."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from fedavg.errors import FleetError
from fedavg.fleets.http.device import link as module
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import Problem
from fedavg.fleets.http.protocol.strict import dump

STALE = Problem(error="stale-epoch", detail="sign again", epoch="new")


@contextmanager
def server(*behaviour: Problem | bytes | None) -> Iterator[str]:
    """Does one of these for each request in turn: refuses it, cuts the connection (None), or answers."""
    steps = iter(behaviour)

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            step = next(steps)
            self.close_connection = True
            if step is None:
                return
            body = step if isinstance(step, bytes) else dump(step)
            self.send_response(200 if isinstance(step, bytes) else 401 if step.error == "stale-epoch" else 409)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def upload(url: str, patience_s: float | None = None) -> bytes:
    link = Link(url, ClientKey.generate(), None, patience_s)
    try:
        return link.upload("/v1/rounds/1/0/update", b"frame")
    finally:
        link.close()


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that a link would have made; the standard clock's sleep does not, here."""
    made: list[float] = []
    monkeypatch.setattr(module, "sleep", made.append)
    return made


def test_pauses_grow_while_the_server_is_away(pauses):
    with server(*[None] * 12, b"ok") as url:
        assert upload(url) == b"ok"
    assert len(pauses) == 12
    first, longest = module.PAUSES_S
    for i, pause in enumerate(pauses):
        assert 0.5 <= pause / min(longest, first * module.GROWTH**i) <= 1.5


def test_a_sign_of_life_makes_pauses_short_again(pauses):
    """Crash after crash, with restarts in between: each is a new beginning."""
    with server(*[None] * 8, STALE, None, b"ok") as url:
        assert upload(url) == b"ok"
    assert pauses[7] > 5 * pauses[8]
    assert pauses[8] <= 1.5 * module.PAUSES_S[0]


def test_patience_has_an_end():
    with server(*[None] * 50) as url, pytest.raises(FleetError, match="has not answered for 0.3 s; is the server run"):
        upload(url, patience_s=0.3)


def test_a_refusal_that_stands_is_not_tried_again(pauses):
    refusal = Problem(error="wrong-round", detail="not now", epoch=None)
    with server(refusal) as url, pytest.raises(ServerRefused, match="wrong-round"):
        upload(url)
    assert pauses == []
