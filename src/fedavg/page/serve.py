"""The program that serves the page until it is stopped."""

import socket
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Final

import uvicorn

from fedavg.errors import FedAvgError
from fedavg.page.answers import Shown
from fedavg.page.app import make_app

HOST: Final = "127.0.0.1"


def serve(shown: Shown, port: int, ready: Callable[[str], None]) -> None:
    """Serve on this machine only; `ready` is called with the address once it can be opened."""
    token = token_urlsafe(16)
    listening = _bound(port)
    address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
    config = uvicorn.Config(
        make_app(shown, token), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=2
    )
    with listening:
        _Told(config, lambda: ready(address), shown).run([listening])


class _Told(uvicorn.Server):
    """Reports when it listens, and ends the streams of events when it is to stop."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], shown: Shown) -> None:
        super().__init__(config)
        self._on_start, self._shown = started, shown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shown.closed = True
        await super().shutdown(sockets)


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise FedAvgError(
            f"--port: cannot listen on {HOST}:{port}: {error.strerror}; expected a port that is free, or 0 for any"
        ) from None
    return listening
