"""The copy of MNIST inside the package: the bytes of the four official idx files, in 9.7 MB, unpacked in 0.2 s.

81 % of MNIST's pixels are zero. So an image file is kept as two streams: which bytes are not zero, one bit each (xz),
and those bytes in order (gzip). That is smaller than the official .gz files and unpacks several times faster than
xz of the whole. `python -m fedavg.data.embedded.make` made these files. NOTICE.txt has their origin and licence.

This module knows the packing and the checksums; `fedavg.data.mnist` knows what is in the files.
"""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from fedavg.errors import DataError

#: SHA-256 of the official files after gunzip.
SHA256: Final = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
HERE: Final = Path(__file__).parent
#: Mask bytes unpacked at a time: their 512 kB of flags stay in the cache.
_BLOCK: Final = 1 << 16


def read_all(folder: Path = HERE) -> dict[str, np.ndarray]:
    """The bytes of each of the four idx files, shape (bytes,) uint8, equal to the official ones or an error."""
    # Decompressing releases the interpreter's lock, so threads do use the cores. What they allocate stays with them:
    # glibc has a heap for each thread, and gives back only what is free in that of the main one.
    with ThreadPoolExecutor(2) as pool:
        streams = {
            name: (
                pool.submit(_stream, folder / f"{name}.mask.xz", lzma.decompress),
                pool.submit(_stream, folder / f"{name}.values.gz", gzip.decompress),
            )
            for name in SHA256
        }
        return {name: _whole(name, mask, values) for name, (mask, values) in streams.items()}


def _stream(path: Path, decompress: Callable[[bytes], bytes]) -> np.ndarray:
    if not path.exists():
        raise DataError(
            f"this installation has no copy of MNIST ({path.name} is not there; wheels for devices leave it out): put "
            "the four official files into the folder mnist of the data directory, or install the whole package"
        )
    try:
        return np.frombuffer(decompress(path.read_bytes()), np.uint8)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path.name, str(error)) from error


def _whole(name: str, mask: Future[np.ndarray], values: Future[np.ndarray]) -> np.ndarray:
    raw = unpack(mask.result(), values.result())
    if hashlib.sha256(raw.data).hexdigest() != SHA256[name]:
        raise _damaged(name, "the SHA-256 differs")
    return raw


def unpack(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The inverse of `pack`. The length is a multiple of 8: the original may be shorter by up to seven zeros."""
    raw = np.zeros(8 * len(mask), np.uint8)
    used = 0
    for start in range(0, len(mask), _BLOCK):
        where = np.unpackbits(mask[start : start + _BLOCK]).view(np.bool_)
        count = int(np.count_nonzero(where))
        raw[8 * start : 8 * start + len(where)][where] = values[used : used + count]
        used += count
    return raw


def pack(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bits that say where `raw` is not zero, and what it is there; both uint8."""
    return np.packbits(raw != 0), raw[raw != 0]


def _damaged(name: str, why: str) -> DataError:
    return DataError(
        f"the embedded copy of {name} is damaged ({why}): expected what the package was released with. "
        "Install the package again, or put the four official MNIST files into the folder mnist of the data directory."
    )
