"""Digests that travel with what they protect: a JSON document with its own, rows that each continue the chain.

They are made over the values and not over the bytes, so that any tool may read the files. They protect against damage,
not against somebody who wants to deceive: anyone who can write the files can write their digests.
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
    """The content of a document that is as it was sealed; ValueError for any other."""
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
    """Rows as lines, each with the digest that it continues the chain by."""
    for row in rows:
        previous = next_link(previous, row)
        yield json.dumps({**row, LINK: previous}).encode() + b"\n"


@dataclass(frozen=True)
class SealedRows:
    """The rows that are whole and in order; the digest of the last; what the first line that is not whole has."""

    rows: list[dict[str, Any]]
    link: str
    damage: str | None


def unchained(data: bytes, link: str = "", before: int = 0) -> SealedRows:
    """Reads lines up to the first that is damaged. One that was cut off at the end is not damaged: it does not count.

    `link` is the digest of the rows `before` these, for a reader that has read those already.
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
