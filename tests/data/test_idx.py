import gzip
from pathlib import Path

import numpy as np
import pytest

from fedavg.data.idx import parse_idx, read_bytes
from fedavg.errors import DataError

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3]) + bytes([1, 2, 3, 4, 5, 6])
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])


def read_idx(path: Path, dims: int) -> np.ndarray:
    return parse_idx(np.frombuffer(read_bytes(path), np.uint8), dims, str(path))


def put(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_reads_raw_and_gzipped(tmp_path: Path, zipped: bool) -> None:
    images = put(tmp_path, gzip.compress(IMAGES, mtime=0) if zipped else IMAGES)
    values = read_idx(images, 3)
    assert values.tolist() == [[[1, 2, 3]], [[4, 5, 6]]]
    assert values.dtype == np.uint8
    assert read_idx(put(tmp_path, LABELS), 1).tolist() == [7, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing: expected an idx file"),
        (b"PK\x03\x04 a zip", "starts with 50 4b 03 04: expected an idx file of unsigned bytes"),
        (b"\0\0\x0d\x03" + IMAGES[4:], "starts with 00 00 0d 03"),
        (LABELS, r"has 1 dimension\(s\), expected 3"),
        (IMAGES[:-1], r"has 21 bytes, expected 22 bytes for the shape \(2, 1, 3\)"),
        (IMAGES + b"\0", "has 23 bytes, expected 22"),
        (IMAGES[:10], "has 10 bytes, expected a header of 16 bytes"),
        (gzip.compress(IMAGES, mtime=0)[:-3], "not a whole gzip file"),
        (b"\x1f\x8bnot gzip at all", "not a whole gzip file"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(put(tmp_path, content), 3)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nowhere: No such file"):
        read_idx(tmp_path / "nowhere", 3)
