"""An HTTP server in its own thread, guarded against requests that are slow, endless or too many.

uvicorn bounds neither the time nor the size of a request's head, nor the time of a TLS handshake, nor how slowly its
answers are read. This module bounds them all: a silent connection is cut within seconds and costs almost nothing until
then.
"""

import asyncio
import logging
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
from fedavg.fleets.http.protocol.messages import Problem
from fedavg.fleets.http.protocol.strict import dump

log = logging.getLogger("fedavg.fleet")

#: Seconds for a handshake, and for the whole head of a request.
HEAD_S: Final = 5.0
LAST_LOOK_S: Final = 0.25
#: Bytes of the request line and all headers (and trailers).
HEAD_BYTES: Final = 16 * 1024
#: The most bytes that the operating system delivers at once: this much of a body can arrive together with its head.
PACKET_BYTES: Final = 2**18
#: Pipelined requests that may wait on a connection; devices send one at a time.
PIPELINED: Final = 16
#: Bytes per second at which a client must read our answers, beyond the seconds of a head.
SLOWEST_DOWNLOAD: Final = 16 * 1024
#: Seconds that an idle connection is kept for the next request: longer than devices pause between polls.
IDLE_S: Final = 75
#: Connections beyond this are answered 503.
CONNECTIONS: Final = 20_000
#: Connections that the system queues until they are accepted.
BACKLOG: Final = 4096
#: Open files besides the connections: the database, libraries, logs.
OTHER_FILES: Final = 256
#: Seconds that requests under way are given when the server stops.
STOP_S: Final = 10


class GuardedProtocol(HttpToolsProtocol):
    """Cuts a connection whose head is late or too large, that pipelines too much, or does not read its answers."""

    _head_timer: TimerHandle | None = None
    _read_timer: TimerHandle | None = None
    _received_bytes = 0
    _head_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()  # blank lines before a request are not a request, but end the idle wait for one
        if self._head_timer is not None:
            self._received_bytes += len(data)
            if self._received_bytes > HEAD_BYTES + PACKET_BYTES:  # the parser does not report a header that has no end
                self.transport.abort()
                return
        super().data_received(data)

    # An exception raised while a request is parsed ends its connection with a 400.

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            raise FleetError(f"more than {PIPELINED} requests wait on one connection")
        super().on_message_begin()
        self._head_bytes = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.cycle.body:
            self.cycle.body = b""  # type: ignore[assignment]  # b"" + body copies nothing, a bytearray would
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        body = dump(Problem(error="bad-request", detail=msg, epoch=None))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def on_response_complete(self) -> None:
        if not self.pipeline and self.cycle.more_body:
            self.transport.close()  # nothing reads the rest of this body, so the connection would never end
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        allowed = HEAD_S + self.transport.get_write_buffer_size() / SLOWEST_DOWNLOAD
        self._read_timer = self.loop.call_later(allowed, self.transport.abort)

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # close() would wait until the last answer is read

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise FleetError(f"the head of a request has more than {HEAD_BYTES} bytes")

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def _head_is_late(self) -> None:
        """A loop that was too busy to read runs its timers first: read once more what has arrived, then cut."""
        self._head_timer = self.loop.call_later(LAST_LOOK_S, self.transport.abort)

    def _head_is_there(self) -> None:
        self._received_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_read(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


class _Server(uvicorn.Server):
    """uvicorn on sockets that are already bound, with a bounded TLS handshake."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._sockets, self._tls = sockets, tls
        #: The event loop, once clients can connect.
        self.listening: Future[asyncio.AbstractEventLoop] = Future()

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
        self.listening.set_result(loop)

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
        self._thread = Thread(target=self._run, name="http", daemon=True)

    def start(self) -> asyncio.AbstractEventLoop:
        """Begin to serve. Once clients can connect, returns the event loop that handlers run in."""
        self._thread.start()
        return self._server.listening.result()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    def stop(self) -> None:
        """Stop accepting, give requests under way a moment, and end."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._server.serve())
        except BaseException as error:
            if self._server.listening.done():
                raise
            self._server.listening.set_exception(error)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: it is written in C."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _raise_file_limit() -> None:
    """Every connection is an open file: raise the limit as far as the system allows, and warn if that is too low."""
    try:
        import resource
    except ImportError:  # not a POSIX system: there is no such limit
        return
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
        listener.listen(BACKLOG)  # now: clients that know the port may connect before the thread has started
    except OSError as error:
        listener.close()
        raise FleetError(
            f"cannot listen on {host}:{port}: {error.strerror}; expected a free port of this machine"
        ) from None
    return listener
