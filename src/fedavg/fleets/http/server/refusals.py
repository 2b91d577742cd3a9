"""How a request is refused: a reason for programs, with its HTTP status, and one for people."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedavg.fleets.http.protocol.messages import PROBLEMS, Problem
from fedavg.fleets.http.protocol.strict import dump, printable


class Refusal(Exception):
    """A refused request: a reason for programs, which implies the HTTP status, and one for people."""

    def __init__(
        self, error: str, detail: str, headers: dict[str, str] | None = None, status: int | None = None
    ) -> None:
        super().__init__(detail)
        self.error, self.detail, self.headers = error, detail, headers or {}
        self.status = PROBLEMS[error] if status is None else status
        #: Who made the request, once known: a client's number, or the label of an operator's token.
        self.by: int | str | None = None

    @property
    def by_name(self) -> dict[str, int | str]:
        """Who made the request, under its field name in the log."""
        return {} if self.by is None else {"client" if isinstance(self.by, int) else "by": self.by}


@contextmanager
def refused_to(by: int | str) -> Iterator[None]:
    """Refusals raised in here carry this client or token holder."""
    try:
        yield
    except Refusal as refusal:
        refusal.by = by
        raise


def problem(refusal: Refusal, epoch: str | None = None) -> Response:
    """The answer to a refused request. The connection ends, since the body may be unread."""
    message = Problem(error=refusal.error, detail=printable(refusal.detail, 1000), epoch=epoch)
    headers = {**refusal.headers, "connection": "close"}
    return Response(dump(message), refusal.status, headers, media_type="application/json")


def later(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}


def pace(wait: float) -> None:
    if wait:
        raise Refusal("too-often", f"too many requests; come back in {wait:.1f} s", later(wait))


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    name = {404: "no-such-path", 405: "wrong-method"}.get(error.status_code, "bad-request")
    return problem(Refusal(name, error.detail, dict(error.headers or {})))


#: Requests without a handler are refused like any others.
HTTP_PROBLEMS: Final[Mapping[Any, Any]] = {HTTPException: _http_problem}


class PlainPaths:
    """No path of ours has an escape or a query: one that does is refused, however a proxy interpreted it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"%" in scope["raw_path"] or scope["query_string"]):
            await problem(Refusal("no-such-path", "paths here have no escapes and no query"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


PLAIN_PATHS: Final = [Middleware(PlainPaths)]
