"""Lossless entropy coding on top of another codec: `entropy:quantise:4`. Huffman coding by zlib, or none at all.

The numbers of an update have no repeated sequences for a dictionary, only some bytes that are more frequent than
others: so there is no search for matches, which also makes it fast. In numbers of several bytes only those with the
exponent are far from uniform, so each byte position is coded separately, and stored as is if nothing can be gained.
"""

import zlib
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from fedavg.codecs.codec import Codec, Shapes
from fedavg.codecs.dense import Float32
from fedavg.errors import PlanError

#: The header of each plane: 1 if it is coded, 0 if stored; its number of bytes.
HEADER: Final = Struct("<?I")
#: From this many bits of information per byte, coding is not worth its time.
DENSE: Final = 7.9


@dataclass(frozen=True)
class Entropy(Codec):
    """The frame of another codec, Huffman-coded where that makes it shorter; lossless.

    It codes the planes of the inner codec's frame: the first byte of all its numbers, then the second, ...

    >>> from fedavg import Quantise
    >>> str(Entropy(Quantise(4)))
    'entropy:quantise:4'
    """

    name = "entropy"
    inner: Codec = Float32()

    def __post_init__(self) -> None:
        if isinstance(self.inner, Entropy):
            raise PlanError("entropy: got a codec that is entropy-coded already; expected another, as in 'entropy:stc'")

    @property
    def keeps_residual(self) -> bool:
        return self.inner.keeps_residual

    def bind(self, shapes: Shapes) -> "Entropy":
        return Entropy(self.inner.bind(shapes))

    def pack(self, values: np.ndarray, rng: np.random.Generator) -> bytes:
        planes = np.frombuffer(self.inner.pack(values, rng), np.uint8).reshape(-1, self.inner.width)
        return b"".join(_coded(np.ascontiguousarray(plane)) for plane in planes.T)

    def unpack(self, frame: bytes, size: int) -> np.ndarray:
        limit = self.inner.max_bytes(size) // self.inner.width
        planes = []
        for _ in range(self.inner.width):
            plane, frame = self._next_plane(frame, limit)
            planes.append(plane)
        if frame or len({len(plane) for plane in planes}) != 1:
            lengths = ", ".join(str(len(plane)) for plane in planes)
            self.refuse(f"planes of {lengths} bytes and {len(frame)} bytes left", "planes of one length, nothing left")
        return self.inner.unpack(np.stack(planes, axis=1).tobytes(), size)

    def max_bytes(self, size: int) -> int:
        return HEADER.size * self.inner.width + self.inner.max_bytes(size)

    def _next_plane(self, frame: bytes, limit: int) -> tuple[np.ndarray, bytes]:
        """The first plane and the rest; never more than the limit, however much a hostile frame would expand to."""
        if len(frame) < HEADER.size:
            self.refuse(f"{len(frame)} bytes left", f"the {HEADER.size} bytes before a plane")
        coded, length = HEADER.unpack_from(frame)
        body, rest = frame[HEADER.size : HEADER.size + length], frame[HEADER.size + length :]
        if len(body) != length:
            self.refuse(f"a plane of {len(body)} bytes", f"{length}")
        plane = self._decoded(body, limit) if coded else body
        if len(plane) > limit:
            self.refuse(f"a plane of more than {limit} bytes", "at most that")
        return np.frombuffer(plane, np.uint8), rest

    def _decoded(self, body: bytes, limit: int) -> bytes:
        decoder = zlib.decompressobj(wbits=-15)
        try:
            plane = decoder.decompress(body, limit + 1)
        except zlib.error as error:
            self.refuse(f"a plane that zlib refuses ({error})", "a whole deflate stream")
        if len(plane) <= limit and (not decoder.eof or decoder.unused_data):
            self.refuse("a plane that ends too early or too late", "exactly one deflate stream")
        return plane


def _coded(plane: np.ndarray) -> bytes:
    """A plane with its header: coded if that makes it shorter."""
    stored = plane.tobytes()
    if _information(plane) < DENSE:
        coder = zlib.compressobj(wbits=-15, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
        coded = coder.compress(stored) + coder.flush()
        if len(coded) < len(stored):
            return HEADER.pack(True, len(coded)) + coded
    return HEADER.pack(False, len(stored)) + stored


def _information(plane: np.ndarray) -> float:
    """Bits of information per byte, if bytes are independent: -Σ p log2 p."""
    if not len(plane):
        return 0.0
    share = np.bincount(plane, minlength=256) / len(plane)
    return float(-(share * np.log2(share, where=share > 0, out=np.zeros(256))).sum())
