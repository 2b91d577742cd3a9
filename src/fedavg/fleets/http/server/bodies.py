"""The body of a request: its size and time are bounded while it arrives."""

import asyncio
from hashlib import sha256
from math import inf
from typing import Final, TypeVar

from starlette.requests import Request

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import MAX_MESSAGE
from fedavg.fleets.http.protocol.strict import MessageRefused, parse
from fedavg.fleets.http.server.refusals import Refusal

#: The largest JSON request, in bytes.
MESSAGE_BYTES: Final = 8 * 1024
#: Seconds of grace for a body, and the bytes per second that it must sustain after that.
BODY_S: Final = 8.0
SLOWEST_UPLOAD: Final = 64 * 1024

T = TypeVar("T")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body of a request."""
    return await Body(request, limit).read()


class Body:
    """A body of at most `limit` bytes, counted on arrival, if it is fast enough. Encodings are refused: no bombs."""

    def __init__(self, request: Request, limit: int) -> None:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal("content-encoding", "content encodings are not taken; send the bytes as they are")
        self._stream, self._limit = request.stream(), limit
        self._chunks: list[bytes] = []
        self._length, self._seconds = 0, 0.0

    async def read(self, enough: float = inf) -> bytes:
        """Read until there are `enough` bytes or the body ends; returns them. Only time spent in here counts."""
        if self._length >= enough:
            return b"".join(self._chunks)
        clock = asyncio.get_running_loop().time
        began = clock() - self._seconds
        try:
            async with asyncio.timeout_at(began + self._patience_s) as patience:
                async for chunk in self._stream:
                    self._take(chunk)
                    if self._length >= enough:
                        break
                    patience.reschedule(began + self._patience_s)
        except TimeoutError:
            detail = f"{self._length} bytes came in {self._patience_s:.0f} s; expected more, or the end"
            raise Refusal("too-slow", detail) from None
        self._seconds = clock() - began
        return b"".join(self._chunks)

    def _take(self, chunk: bytes) -> None:
        self._length += len(chunk)
        if self._length > self._limit:
            raise Refusal("too-large", f"the body has more than {self._limit} bytes")
        self._chunks.append(chunk)

    @property
    def _patience_s(self) -> float:
        return BODY_S + self._length / SLOWEST_UPLOAD


def parse_body(kind: type[T], body: bytes) -> T:
    try:
        return parse(kind, body, MAX_MESSAGE)
    except MessageRefused as error:
        raise Refusal(error.reason, str(error)) from None


def check_body(fields: keys.SignedFields, body: bytes) -> None:
    try:
        keys.check_body(fields, sha256(body).hexdigest())
    except keys.SignatureRefused as error:
        raise Refusal(error.reason, str(error)) from None
