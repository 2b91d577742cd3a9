"""Reads the idx files that MNIST comes in, raw or gzipped. It knows the format, not what the numbers mean.

An idx file is: two zero bytes, a type byte (0x08 = unsigned bytes, the only one here), a byte with the number of
dimensions, each dimension as a big-endian uint32, then the values, last dimension fastest.
"""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from fedavg.errors import DataError

_UNSIGNED_BYTES = 0x08
_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if it is gzipped, whatever it is called."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is not a whole gzip file ({error}): it was cut short or damaged. Delete it and fetch it again."
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Check that it is a file and readable.") from error


def parse_idx(raw: np.ndarray, dims: int, source: str) -> np.ndarray:
    """A view of `raw`, shape (bytes,) uint8, as the idx array that it spells; `source` names it in errors."""
    header = 4 + 4 * dims
    if len(raw) < 4 or raw[0] or raw[1] or raw[2] != _UNSIGNED_BYTES:
        raise DataError(
            f"{source} starts with {raw[:4].tobytes().hex(' ') or 'nothing'}: expected an idx file of unsigned bytes "
            f"(00 00 08 {dims:02x}). Is it another file under this name? Delete it and fetch it again."
        )
    if raw[3] != dims:
        raise DataError(
            f"{source} has {raw[3]} dimension(s), expected {dims} (images have 3, labels have 1). "
            "Were images and labels mixed up?"
        )
    shape = tuple(int(size) for size in raw[4:header].view(">u4")) if len(raw) >= header else ()
    if len(shape) != dims or len(raw) != header + prod(shape):
        wanted = f"{header + prod(shape)} bytes for the shape {shape}" if shape else f"a header of {header} bytes"
        raise DataError(
            f"{source} has {len(raw)} bytes, expected {wanted}: it was cut short or damaged. "
            "Delete it and fetch it again."
        )
    return raw[header:].reshape(shape)
