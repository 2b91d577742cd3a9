"""Who sent a request: Ed25519 signatures over its content, and counters against replay. No clock is needed.

A client signs its number, the server's epoch and a counter together with the request. A server draws a new
epoch whenever it starts, so it need remember counters only while it runs; a client that signed for an older epoch
receives the new one and signs again. A device with a wrong clock is not locked out.
"""

import hmac
import os
import re
import secrets
import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final, Literal, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedavg.errors import FedAvgError
from fedavg.files import write_atomically

PROTOCOL: Final = "fedavg-v1"
#: Replaces the number of a client that has none yet.
ENROL: Final = "enrol"
TOKEN_PREFIX: Final = "fedavg_join_"
#: How far a request's counter may lag behind its client's newest and still be accepted.
WINDOW: Final = 64
LARGEST_COUNTER: Final = 2**63 - 1

CLIENT, EPOCH, COUNTER, BODY, SIGNATURE = (
    "FedAvg-Client",
    "FedAvg-Epoch",
    "FedAvg-Counter",
    "FedAvg-Body-SHA256",
    "FedAvg-Signature",
)

RequestRefusal = Literal["malformed", "stale-epoch", "bad-signature", "replayed", "too-old", "body-mismatch"]


class KeyFileError(FedAvgError):
    """A file holds no usable key, or other users can read it."""


class SignatureRefused(FedAvgError):
    """A request is refused; `reason` is for programs.

    For "replayed" and "too-old", `highest` is the largest counter seen from this client: a client that lost count, for
    example by a restart, signs again with a larger one.
    """

    def __init__(self, reason: RequestRefusal, message: str, highest: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.highest = highest


@dataclass(frozen=True)
class SignedFields:
    """Everything that a signature binds. `client` is a number in decimal, or `ENROL`; `path` includes the query."""

    method: str
    path: str
    client: str
    epoch: str
    counter: int
    body_sha256: str

    @property
    def text(self) -> bytes:
        """The signed text, one field per line. No field can contain a line break, so no two requests share a text."""
        lines = (PROTOCOL, self.method, self.path, self.client, self.epoch, str(self.counter), self.body_sha256)
        if any(not line.isascii() or not line.isprintable() for line in lines):
            raise SignatureRefused("malformed", "a signed field holds characters that are not printable ASCII")
        return "\n".join(lines).encode()


class ClientKey:
    """A client's private key; `public` (32 bytes) verifies its signatures."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self.private = private
        self.public: bytes = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @classmethod
    def generate(cls) -> Self:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """The key in a PEM file, which other users must not be able to read."""
        private = _parse_key(_read_private(path), path)
        return cls(private)

    def save(self, path: Path) -> None:
        """Write a PEM file (PKCS 8) that only its user can read. An existing key is never overwritten."""
        if path.exists():
            raise KeyFileError(f"{path} is there already; remove it, and with it the client's identity, or keep it")
        pem = self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomically(path, pem, private=True)

    def sign(self, request: SignedFields) -> str:
        return b64encode(self.private.sign(request.text)).decode()


class Signer:
    """A client's side of the protocol: its key, its number, the server's epoch and its counter."""

    def __init__(self, key: ClientKey, client: int | None, epoch: str) -> None:
        self.key = key
        self.client = client
        self._lock = Lock()
        self.epoch = epoch
        self._counter = 0

    def headers(self, method: str, path: str, body: bytes | str) -> dict[str, str]:
        """The headers of a new request; `body` is its bytes, or their SHA-256 in hex."""
        digest = body if isinstance(body, str) else sha256(body).hexdigest()
        client = ENROL if self.client is None else str(self.client)
        with self._lock:
            self._counter += 1
            fields = SignedFields(method, path, client, self.epoch, self._counter, digest)
        return headers(self.key, fields)

    def resync(self, epoch: str, highest: int = 0) -> None:
        """Continue with the epoch and the largest counter that the server gave when it refused a request."""
        with self._lock:
            self._counter = max(highest, self._counter if epoch == self.epoch else 0)
            self.epoch = epoch


class ReplayGuard:
    """Accepts each counter of a client once, in almost any order, with two integers of memory per client."""

    def __init__(self, epoch: str | None = None) -> None:
        self.epoch = epoch or secrets.token_urlsafe(16)
        self._lock = Lock()
        #: Per client the highest counter, and a bitmap in which bit i stands for the counter i below it.
        self._seen: dict[int, tuple[int, int]] = {}

    def check(self, client: int, counter: int) -> None:
        """Mark a counter as used; refuse one that was used, or that is too old to tell."""
        with self._lock:
            highest, bitmap = self._seen.get(client, (0, 0))
            behind = highest - counter
            if behind >= WINDOW:
                raise SignatureRefused(
                    "too-old", f"counter {counter} is {behind} behind; expected less than {WINDOW}", highest
                )
            if behind >= 0 and bitmap >> behind & 1:
                raise SignatureRefused("replayed", f"counter {counter} was used already; sign with a new one", highest)
            if behind < 0:
                kept = bitmap << min(-behind, WINDOW) & (2**WINDOW - 1)
                self._seen[client] = (counter, kept | 1)
            else:
                self._seen[client] = (highest, bitmap | 1 << behind)


def headers(key: ClientKey, fields: SignedFields) -> dict[str, str]:
    """The headers that carry a signature."""
    return {
        CLIENT: fields.client,
        EPOCH: fields.epoch,
        COUNTER: str(fields.counter),
        BODY: fields.body_sha256,
        SIGNATURE: key.sign(fields),
    }


def parse(method: str, path: str, headers: Mapping[str, str]) -> tuple[SignedFields, str]:
    """The signed fields of a request, and its signature. `headers` must ignore case, or use our spelling of names."""
    client, counter, body = (_header(headers, name, shape) for name, shape in _SHAPES.items())
    fields = SignedFields(method, path, client, _header(headers, EPOCH), int(counter), body)
    if fields.counter > LARGEST_COUNTER:
        raise SignatureRefused("malformed", f"{COUNTER} is too large; expected at most {LARGEST_COUNTER}")
    return fields, _header(headers, SIGNATURE)


def verify(
    fields: SignedFields, signature: str, public: bytes, guard: ReplayGuard, counted_as: int | None = None
) -> None:
    """Refuse a request that the holder of `public` did not sign for this epoch, or that was seen before.

    Its counter is marked as used for client `counted_as`, and only if the signature is good. A key that is not
    enrolled yet has no number, and nothing is remembered about it: strangers must not fill the server's memory, and
    enrolling twice has the same effect as once.

    The body need not have been read yet; call `check_body` once it has.
    """
    if not _same(fields.epoch, guard.epoch):
        raise SignatureRefused("stale-epoch", "the request was signed for another run of the server; sign it again")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(_from_base64(signature), fields.text)
    except (InvalidSignature, ValueError):  # a public key of the wrong length is a ValueError
        raise SignatureRefused(
            "bad-signature",
            "the signature is not that of a client enrolled here under this number; enrol first, or use its key",
        ) from None
    if counted_as is not None:
        guard.check(counted_as, fields.counter)


def check_body(fields: SignedFields, body_sha256: str) -> None:
    """Refuse a body (given by its SHA-256 in hex) that is not the signed one."""
    if not _same(fields.body_sha256, body_sha256):
        raise SignatureRefused("body-mismatch", f"the body's SHA-256 is not the one in {BODY}; send it again")


def new_token() -> str:
    """A join token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> bytes:
    """What the server stores for a token. One plain hash is enough: nobody can guess 256 random bits."""
    return sha256(token.encode(errors="replace")).digest()


def matches(token: str, hash: bytes) -> bool:
    return hmac.compare_digest(token_hash(token), hash)


_SHAPES: Final = {
    CLIENT: re.compile(rf"(0|[1-9][0-9]{{0,18}}|{ENROL})", re.ASCII),
    COUNTER: re.compile(r"[1-9][0-9]{0,18}", re.ASCII),
    BODY: re.compile(r"[0-9a-f]{64}"),
}


def _header(headers: Mapping[str, str], name: str, shape: re.Pattern[str] | None = None) -> str:
    value = headers.get(name)
    if value is None:
        raise SignatureRefused("malformed", f"the request has no header {name}")
    if shape is not None and not shape.fullmatch(value):
        raise SignatureRefused("malformed", f"{name} is {value[:80]!r}; expected {shape.pattern}")
    return value


def _from_base64(signature: str) -> bytes:
    try:
        return b64decode(signature, validate=True)
    except ValueError:
        raise SignatureRefused("malformed", f"{SIGNATURE} is not base64") from None


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(errors="replace"), b.encode(errors="replace"))


def _read_private(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise KeyFileError(
                    f"others can use {path} (mode {mode:04o}); expected 0600: run chmod 600, or make a new key if "
                    "somebody may have read it"
                )
            return file.read()
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror}") from error


def _parse_key(pem: bytes, path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} holds no private key that can be read; expected PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} holds a key of another kind ({type(key).__name__}); expected Ed25519")
    return key
