"""The messages between server and clients: plain values and their exact bytes.

A message is the format's name, its kind, the session, then its fields, big-endian. Reading checks every length and
refuses trailing bytes. The session decides whether a message makes sense.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack, unpack_from
from typing import ClassVar, Final, Self, TypeVar

from fedavg.secagg.errors import BadMessage, Fault
from fedavg.secagg.field import PRIME, SHARE_BYTES
from fedavg.secagg.identity import IDENTITY_BYTES, SIGNATURE_BYTES
from fedavg.secagg.masks import KEY_BYTES
from fedavg.secagg.terms import DIGEST_BYTES, SESSION_BYTES

MAGIC: Final = b"FSA1"
#: AES-GCM over two shares: the text and its tag. The nonce is constant, because a key seals only one message.
SEALED_BYTES: Final = 2 * SHARE_BYTES + 16
_HEADER_BYTES: Final = len(MAGIC) + 1 + SESSION_BYTES

T = TypeVar("T")


def malformed(what: str) -> BadMessage:
    return BadMessage(Fault.MALFORMED, f"not a message of secure aggregation: {what}")


class _Reader:
    """Reads fields from the front of a message; raises if too few bytes are left."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def take(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._data):
            raise malformed(f"it ends after {len(self._data)} bytes; expected at least {end}")
        piece = self._data[self._place : end]
        self._place = end
        return piece

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def many(self, size: int, read: Callable[["_Reader"], T]) -> tuple[T, ...]:
        """As many items as the next number says, each of at least `size` bytes; the count is checked first."""
        count = self.number()
        if count * size > len(self._data) - self._place:
            raise malformed(f"it announces {count} items and ends after {len(self._data)} bytes")
        return tuple(read(self) for _ in range(count))

    def numbers(self) -> tuple[int, ...]:
        count = self.number()
        return unpack_from(f">{count}I", self.take(4 * count))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._place)

    def end(self) -> None:
        if self._place != len(self._data):
            raise malformed(f"{len(self._data) - self._place} bytes are left over")


def _numbers(values: tuple[int, ...]) -> bytes:
    return pack(f">{len(values) + 1}I", len(values), *values)


@dataclass(frozen=True)
class SessionMessage:
    """The part that all messages share."""

    KIND: ClassVar[int] = 0
    session: bytes

    def to_bytes(self) -> bytes:
        return b"".join((MAGIC, bytes([self.KIND]), self.session, self._body()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The message of this kind in these bytes, or `BadMessage`."""
        reader = _Reader(data)
        if reader.take(len(MAGIC)) != MAGIC or reader.take(1)[0] != cls.KIND:
            raise malformed(f"it does not begin as a {cls.__name__}")
        message = cls._read(reader.take(SESSION_BYTES), reader)
        reader.end()
        return message

    def _body(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        raise NotImplementedError


@dataclass(frozen=True)
class KeyAdvert(SessionMessage):
    """Phase 1, client to server: its public keys, and the commitment to its seed.

    In a signed session also its identity (a public key), the authority's voucher for that, and the identity's
    signature on all of it.
    """

    KIND = 1
    client: int
    mask_key: bytes
    share_key: bytes
    commitment: bytes
    identity: bytes = b""
    voucher: bytes = b""
    signature: bytes = b""

    def statement(self, terms: bytes) -> bytes:
        """What the identity signs."""
        keys = (self.mask_key, self.share_key, self.commitment, self.identity)
        return b"".join((b"fedavg secagg keys 2", terms, pack(">I", self.client), *keys))

    def _body(self) -> bytes:
        signed = (bytes([bool(self.signature)]), self.identity, self.voucher, self.signature)
        return b"".join((pack(">I", self.client), self.mask_key, self.share_key, self.commitment, *signed))

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        client = reader.number()
        keys = reader.take(KEY_BYTES), reader.take(KEY_BYTES), reader.take(DIGEST_BYTES)
        signed = reader.take(1)[0]
        if signed > 1:
            raise malformed(f"the mark of a signature is {signed}; expected 0 or 1")
        sizes = (IDENTITY_BYTES, SIGNATURE_BYTES, SIGNATURE_BYTES)
        return cls(session, client, *keys, *(reader.take(size * signed) for size in sizes))


@dataclass(frozen=True)
class Roster(SessionMessage):
    """Phase 2, server to client: the keys of the client itself and of its neighbours, by ascending id."""

    KIND = 2
    adverts: tuple[KeyAdvert, ...]

    def _body(self) -> bytes:
        return pack(">I", len(self.adverts)) + b"".join(advert._body() for advert in self.adverts)

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        smallest = 4 + 2 * KEY_BYTES + DIGEST_BYTES + 1
        return cls(session, reader.many(smallest, lambda reader: KeyAdvert._read(session, reader)))


@dataclass(frozen=True)
class SealedShares(SessionMessage):
    """Phase 2, client to server: for each neighbour, its shares of the client's two secrets, sealed."""

    KIND = 3
    client: int
    sealed: tuple[tuple[int, bytes], ...]

    def _body(self) -> bytes:
        return pack(">I", self.client) + _pairs(self.sealed)

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        return cls(session, reader.number(), _read_pairs(reader, SEALED_BYTES))


@dataclass(frozen=True)
class ShareDelivery(SessionMessage):
    """Phase 3, server to client: the shares that its neighbours have sealed for it, by ascending sender."""

    KIND = 4
    sealed: tuple[tuple[int, bytes], ...]

    def _body(self) -> bytes:
        return _pairs(self.sealed)

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        return cls(session, _read_pairs(reader, SEALED_BYTES))


@dataclass(frozen=True)
class MaskedInput(SessionMessage):
    """Phase 3, client to server: its masked vector, little-endian ring elements."""

    KIND = 5
    client: int
    vector: bytes

    def _body(self) -> bytes:
        return pack(">I", self.client) + self.vector

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        return cls(session, reader.number(), reader.rest())


@dataclass(frozen=True)
class SurvivorSet(SessionMessage):
    """Phase 4 (signed sessions only), server to client: whose input has arrived, and who was lost after sharing."""

    KIND = 6
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]

    def statement(self, terms: bytes) -> bytes:
        """What clients sign and compare: everything that decides which shares are sent."""
        return b"".join((b"fedavg secagg survivors 1", terms, _numbers(self.survivors), _numbers(self.dropped)))

    def _body(self) -> bytes:
        return _numbers(self.survivors) + _numbers(self.dropped)

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        return cls(session, reader.numbers(), reader.numbers())


@dataclass(frozen=True)
class Endorsement(SessionMessage):
    """Phase 4, client to server: its signature under the survivor set that it was shown."""

    KIND = 7
    client: int
    signature: bytes

    def _body(self) -> bytes:
        return pack(">I", self.client) + self.signature

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        return cls(session, reader.number(), reader.take(SIGNATURE_BYTES))


@dataclass(frozen=True)
class UnmaskRequest(SessionMessage):
    """Phase 5, server to client: the survivor set and (if signed) who of its neighbourhood was shown the same."""

    KIND = 8
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]
    endorsements: tuple[Endorsement, ...] = ()

    @property
    def survivor_set(self) -> SurvivorSet:
        return SurvivorSet(self.session, self.survivors, self.dropped)

    def _body(self) -> bytes:
        count = pack(">I", len(self.endorsements))
        return self.survivor_set._body() + count + b"".join(each._body() for each in self.endorsements)

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        sets = reader.numbers(), reader.numbers()
        return cls(session, *sets, reader.many(4 + SIGNATURE_BYTES, lambda reader: Endorsement._read(session, reader)))


@dataclass(frozen=True)
class UnmaskShares(SessionMessage):
    """Phase 5, client to server: one share per peer, of the seed of a survivor or of the masking key of one lost."""

    KIND = 9
    client: int
    seeds: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]

    def _body(self) -> bytes:
        return pack(">I", self.client) + _shares(self.seeds) + _shares(self.keys)

    @classmethod
    def _read(cls, session: bytes, reader: _Reader) -> Self:
        return cls(session, reader.number(), _read_shares(reader), _read_shares(reader))


def _pairs(pairs: tuple[tuple[int, bytes], ...]) -> bytes:
    return pack(">I", len(pairs)) + b"".join(pack(">I", client) + content for client, content in pairs)


def _read_pairs(reader: _Reader, size: int) -> tuple[tuple[int, bytes], ...]:
    return reader.many(4 + size, lambda reader: (reader.number(), reader.take(size)))


def _shares(shares: tuple[tuple[int, int], ...]) -> bytes:
    return _pairs(tuple((owner, share.to_bytes(SHARE_BYTES, "big")) for owner, share in shares))


def _read_shares(reader: _Reader) -> tuple[tuple[int, int], ...]:
    shares = tuple((owner, int.from_bytes(share, "big")) for owner, share in _read_pairs(reader, SHARE_BYTES))
    if any(share >= PRIME for _, share in shares):
        raise malformed("a share lies outside the field")
    return shares


_KINDS: Final[dict[int, type[SessionMessage]]] = {
    kind.KIND: kind
    for kind in (
        KeyAdvert, Roster, SealedShares, ShareDelivery, MaskedInput,
        SurvivorSet, Endorsement, UnmaskRequest, UnmaskShares,
    )
}  # fmt: skip


def parse(data: bytes) -> SessionMessage:
    """The message in these bytes, of whatever kind."""
    kind = _KINDS.get(data[len(MAGIC)]) if len(data) >= _HEADER_BYTES else None
    if kind is None:
        raise malformed("its kind is unknown")
    return kind.from_bytes(data)
