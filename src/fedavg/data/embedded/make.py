"""Makes the embedded copy of MNIST from the four official idx files: `python -m fedavg.data.embedded.make SOURCE`."""

import gzip
import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np

from fedavg.data.embedded import HERE, SHA256, pack
from fedavg.data.idx import read_bytes
from fedavg.errors import DataError

#: Bits of a picture have no byte alignment, so no position bits; the rest is xz at its strongest.
_XZ = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 0, "pb": 0},)


def write_all(source: Path, target: Path = HERE) -> None:
    """Reads each file from `source`, raw or .gz, checks it, and writes its two streams into `target`."""
    for name, expected in SHA256.items():
        plain = source / name
        raw = read_bytes(plain if plain.exists() else source / f"{name}.gz")
        got = hashlib.sha256(raw).hexdigest()
        if got != expected:
            raise DataError(f"{plain}: SHA-256 is {got}, expected {expected}. Take the official file.")
        mask, values = pack(np.frombuffer(raw, np.uint8))
        (target / f"{name}.mask.xz").write_bytes(lzma.compress(mask.tobytes(), filters=_XZ))
        (target / f"{name}.values.gz").write_bytes(gzip.compress(values.tobytes(), 9, mtime=0))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
