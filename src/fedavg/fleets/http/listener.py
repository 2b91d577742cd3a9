"""An HTTP server in a thread of its own, guarded against clients that are slow, endless or too many.

uvicorn bounds neither the time nor the size of a request's head, nor the time of a TLS handshake; here all three are,
so that a connection which says nothing is cut within seconds and costs next to nothing until then.
"""

import asyncio
import logging
import resource
import socket
import ssl
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedavg.errors import FleetError

log = logging.getLogger("fedavg.fleet")

#: Seconds for a handshake, and for the whole head of a request.
HEAD_S: Final = 5.0
LAST_LOOK_S: Final = 0.25
#: Bytes of the request line and all headers.
HEAD_BYTES: Final = 16 * 1024
#: Seconds that an idle connection is kept for the next request: longer than devices pause between polls.
IDLE_S: Final = 75
#: Connections beyond this are answered 503.
CONNECTIONS: Final = 20_000
#: Connections that the system keeps until they are accepted.
BACKLOG: Final = 4096
#: Files besides the connections: the database, libraries, logs.
OTHER_FILES: Final = 256
#: Seconds that requests under way are given when the server stops.
STOP_S: Final = 10


class GuardedProtocol(HttpToolsProtocol):
    """Cuts a connection whose request head is not there in time, or grows too large."""

    _timer: TimerHandle | None = None
    _head_bytes = 0
    _header_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head_bytes += len(data)
            # A body that follows the head in the same packet is counted as well, hence the allowance of one packet.
            if self._head_bytes > HEAD_BYTES + 2**18:
                self.transport.abort()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.cycle.body:
            self.cycle.body = b""  # type: ignore[assignment]  # adding to this one copies nothing
        super().on_body(body)

    def _expect_head(self) -> None:
        self._head_is_there()
        self._timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def _head_is_late(self) -> None:
        """A loop that was too busy to read runs its timers first: one more look at what has come, then the end."""
        self._timer = self.loop.call_later(LAST_LOOK_S, self.transport.abort)

    def _head_is_there(self) -> None:
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """uvicorn on sockets that are bound already, with a bounded TLS handshake."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._sockets, self._tls = sockets, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        bound = HEAD_S if self._tls else None
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=sock,
                ssl=self._tls,
                backlog=self.config.backlog,
                ssl_handshake_timeout=bound,
                ssl_shutdown_timeout=bound,
            )
            for sock in self._sockets
        ]
        self.started = True

    def _protocol(self) -> GuardedProtocol:
        return GuardedProtocol(self.config, self.server_state, {})


class Listener:
    """Serves an ASGI application on a socket from a background thread."""

    def __init__(self, app: Callable[..., Any], host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        _raise_file_limit()
        config = uvicorn.Config(
            app,
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_S,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=STOP_S,
            backlog=BACKLOG,
        )
        self._server = _Server(config, [self._socket], tls)
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=self._run, name="http", daemon=True)

    def start(self) -> asyncio.AbstractEventLoop:
        """Begin to serve; returns the event loop that handlers run in."""
        self._thread.start()
        return self._loop.result()

    def stop(self) -> None:
        """Stop accepting, give requests under way a moment, and end."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            self._loop.set_result(runner.get_loop())
            runner.run(self._server.serve())


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: it is written in C."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _raise_file_limit() -> None:
    """Every connection is an open file: ask for as many as the system allows, and say if that is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft < CONNECTIONS + OTHER_FILES:
        log.warning(
            "few open files are allowed; raise the limit (ulimit -Hn) to serve more clients",
            extra={"limit": soft, "expected": CONNECTIONS + OTHER_FILES},
        )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # at once: whoever is told the port may connect, even before the thread has started
    except OSError as error:
        listener.close()
        raise FleetError(
            f"can not listen on {host}:{port}: {error.strerror}; expected a free port of this machine"
        ) from None
    return listener
