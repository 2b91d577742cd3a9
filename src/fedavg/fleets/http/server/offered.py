"""The models that clients may fetch, by the SHA-256 of their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from torch import Tensor

from fedavg.fleets.http.protocol.changes import KeptChanges
from fedavg.fleets.http.server.shared import Shared
from fedavg.types import Part


@dataclass(frozen=True)
class Released:
    """A model that clients may take away: the round that it came out of, and its bytes."""

    round: int
    digest: str
    content: bytes


class OfferedModels:
    """The last published models to train from, the ones before them, and the model to take away. Thread-safe."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._contents: dict[str, bytes] = {}
        self._changes: dict[str, KeptChanges] = {}
        self._latest: list[str] = []
        #: The model that clients may take away, if there is one yet.
        self.released: Released | None = None

    def publish(self, parts: Sequence[Part]) -> list[str]:
        """Offer models for download; returns their SHA-256. The previous ones stay for clients still fetching them."""
        data = [part.shared.numpy().astype("<f4", copy=False).tobytes() for part in parts]
        digests = [sha256(content).hexdigest() for content in data]
        changes = {digest: KeptChanges(part.frames) for digest, part in zip(digests, parts, strict=True)}
        with self._shared.changed:
            self._contents = {digest: self._contents[digest] for digest in self._latest}
            self._contents |= zip(digests, data, strict=True)
            self._changes = {digest: self._changes[digest] for digest in self._latest} | changes
            self._latest = digests
        return digests

    def release(self, round: int, weights: Tensor) -> None:
        """Let clients take away the model of a committed round; it replaces the previous one."""
        content = weights.numpy().astype("<f4", copy=False).tobytes()
        self.released = Released(round, sha256(content).hexdigest(), content)

    def content(self, digest: str) -> bytes | None:
        """The bytes of a model; None if it is not on offer."""
        released = self.released
        return released.content if released and released.digest == digest else self._contents.get(digest)

    def changes(self, digest: str, count: int) -> memoryview | None:
        """The last `count` changes that lead to a model; None if there are fewer."""
        known = self._changes.get(digest)
        return known.last(count) if known else None
