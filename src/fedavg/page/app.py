"""The page over HTTP: for this machine and whoever knows the token, read-only.

Any website that is open in the browser can send requests to 127.0.0.1, and with DNS rebinding it can read the answers.
So the address contains a token, and the request's host name must be this machine's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from json import dumps
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedavg.page.answers import NotThere, Shown
from fedavg.page.site import POLICY, asset

#: Host names of this machine.
HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
#: Seconds between checks for something new, and between keep-alive messages.
LOOK_S: Final = 0.3
ALIVE_S: Final = 15.0
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guarded:
    """Refuses requests for a host name other than this machine's, or without the token; sets headers on all answers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._prefix = app, f"/{token}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].extend((name.encode(), value.encode()) for name, value in HEADERS.items())
            await send(message)

        refusal = self._refusal(request)
        if refusal:
            await refusal(scope, receive, with_headers)
            return
        inner = dict(scope) | {"path": scope["path"][len(self._prefix) - 1 :], "raw_path": b""}
        await self._app(inner, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            return PlainTextResponse("got another host; expected 127.0.0.1 or localhost\n", 421)
        given = request.url.path[: len(self._prefix)]
        if not compare_digest(given.encode(), self._prefix.encode()):
            return PlainTextResponse("the address lacks its token; open the one that 'fedavg page' printed\n", 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only reads: expected GET\n", 405)
        return None


def make_app(shown: Shown, token: str) -> ASGIApp:
    """The application that shows runs, a fleet or both under the token."""
    routes = [
        Route("/", partial(_file, name="index.html")),
        Route("/static/{name}", _static),
        Route("/events", partial(_events, shown=shown)),
        Route("/api/{path:path}", partial(_answer, shown=shown)),
    ]
    return Guarded(Starlette(routes=routes), token)


async def _static(request: Request) -> Response:
    return await _file(request, str(request.path_params["name"]))


async def _file(_: Request, name: str) -> Response:
    found = asset(name)
    return Response(found[0], media_type=found[1]) if found else PlainTextResponse("no such file\n", 404)


async def _answer(request: Request, shown: Shown) -> Response:
    path = str(request.path_params["path"])
    query = f"{path}?{request.url.query}" if request.url.query else path
    return await run_in_threadpool(_answered, shown.answer, query)


def _answered(answer: Callable[[str], dict[str, Any]], query: str) -> Response:
    try:
        return JSONResponse(answer(query))
    except NotThere as error:
        return JSONResponse({"error": str(error)}, 404)


async def _events(_: Request, shown: Shown) -> Response:
    """Announces that something is new; the page then asks for what it needs."""

    async def stream() -> AsyncIterator[bytes]:
        told, silent = -1, 0.0
        with suppress(asyncio.CancelledError):
            while not shown.closed:
                if shown.version != told:
                    told, silent = shown.version, 0.0
                    yield f"data: {dumps({'version': told})}\n\n".encode()
                elif silent >= ALIVE_S:
                    silent = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(LOOK_S)
                silent += LOOK_S

    return StreamingResponse(stream(), media_type="text/event-stream")
