"""Large answers that never change under their name: whole, or a range."""

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fedavg.fleets.http.server.refusals import Refusal

#: Bytes of a model that are in flight to one client at a time.
PIECE_BYTES: Final = 256 * 1024


#: Content that never changes under its address may be cached by anyone; other content is fetched again each time.
IMMUTABLE: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "private, no-cache"


def file_answer(request: Request, name: str, data: memoryview, cache: str = IMMUTABLE) -> Response:
    """A file with its name as the ETag; all of it, or the requested range."""
    headers = {
        "etag": f'"{name}"',
        "cache-control": cache,
        "accept-ranges": "bytes",
        "content-type": "application/octet-stream",
    }
    if request.headers.get("if-none-match") == f'"{name}"':
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("range")
    if wanted is None or request.headers.get("if-range", f'"{name}"') != f'"{name}"':
        return _pieces(data, 200, headers)
    first, last = _byte_range(wanted, len(data))
    headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
    return _pieces(data[first : last + 1], 206, headers)


def _pieces(data: memoryview, status: int, headers: dict[str, str]) -> Response:
    """A large answer, sent as fast as the client reads: a slow reader keeps one piece in memory, not all of it."""

    async def pieces() -> AsyncIterator[memoryview]:
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    return StreamingResponse(pieces(), status, headers | {"content-length": str(len(data))})


def _byte_range(text: str, size: int) -> tuple[int, int]:
    """The first and last byte of a single range; anything else is refused."""
    unit, _, span = text.partition("=")
    first, dash, last = span.partition("-")
    digits = all(part.isascii() and part.isdigit() and len(part) < 16 for part in (first, last) if part)
    if unit.strip() != "bytes" or not dash or not digits or not (first or last):
        raise Refusal("bad-range", "expected 'bytes=FIRST-LAST'", {"content-range": f"bytes */{size}"})
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        raise Refusal("bad-range", f"expected a range within {size} bytes", {"content-range": f"bytes */{size}"})
    return start, end
