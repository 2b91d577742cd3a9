"""Digests stored with what they protect: each JSON document has its own, and each row continues a chain.

They cover the values, not the bytes, so that any tool may read the files. They protect against damage, not against
forgery: anyone who can write the files can write their digests.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any, Final

#: The name of the digest in a document and in a row.
SEAL: Final = "sha256"
LINK: Final = "digest"


def canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its digest as the last entry."""
    return {**content, SEAL: sha256(canonical(dict(content))).hexdigest()}


def unsealed(document: object) -> dict[str, Any]:
    """The content of a sealed document; ValueError if it was changed."""
    if not isinstance(document, dict) or SEAL not in document:
        raise ValueError("it has no digest")
    content = {name: value for name, value in document.items() if name != SEAL}
    if sealed(content)[SEAL] != document[SEAL]:
        raise ValueError("it does not match its SHA-256")
    return content


def next_link(previous: str, row: Mapping[str, Any]) -> str:
    """The digest of a row and of all rows before it."""
    return blake2b(previous.encode() + canonical(dict(row)), digest_size=16).hexdigest()


def chained(rows: Iterable[Mapping[str, Any]], previous: str = "") -> Iterator[bytes]:
    """Rows as lines, each with its digest in the chain."""
    for row in rows:
        previous = next_link(previous, row)
        yield json.dumps({**row, LINK: previous}).encode() + b"\n"


@dataclass(frozen=True)
class SealedRows:
    """The rows that are intact and in order; the digest of the last; the fault of the first damaged line."""

    rows: list[dict[str, Any]]
    link: str
    damage: str | None


def unchained(data: bytes, link: str = "", before: int = 0) -> SealedRows:
    """Read lines up to the first damaged one. A last line that was cut off is not damage: it is ignored.

    `link` is the digest of the rows `before` these, for a reader that has already read those.
    """
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data.splitlines(keepends=True), before + 1):
        row = _row(line, link)
        if row is None and not line.endswith(b"\n"):
            break
        if row is None or row.get("round") != number:
            return SealedRows(rows, link, f"line {number} does not match its digest")
        link = next_link(link, row)
        rows.append(row)
    return SealedRows(rows, link, None)


def _row(line: bytes, previous: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not line.endswith(b"\n") or not isinstance(row, dict):
        return None
    link = row.pop(LINK, None)
    return row if link == next_link(previous, row) else None
