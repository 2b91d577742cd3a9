import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedavg.data import load
from fedavg.data.cifar10 import CIFAR10, split_records, unpack_archive
from fedavg.data.download import complete
from fedavg.errors import DataError


@pytest.fixture
def batches(real_data: Path) -> Path:
    if not complete(CIFAR10, real_data):
        pytest.skip(f"the binary batches of CIFAR-10 are not in {real_data}: unpack them there first")
    return real_data


def test_a_record_is_a_label_and_three_planes() -> None:
    records = np.zeros((2, 3073), np.uint8)
    records[1, 0] = 7
    records[1, 1:1025], records[1, 1025:2049], records[1, 2049:] = 1, 2, 3
    records[1, 1 + 32] = 9  # red, second row, first column
    x, y = split_records(records)
    assert x.shape == (2, 3, 32, 32)
    assert x.dtype == torch.uint8
    assert y.tolist() == [0, 7]
    assert x[1, :, 0, 0].tolist() == [1, 2, 3]
    assert x[1, 0, 1, 0] == 9


def test_an_archive_is_unpacked_flat_and_only_its_batches(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as tar:
        for name in ("cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-bin/readme.html", "../test_batch.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    unpack_archive(tmp_path / "archive.tar.gz", tmp_path)
    assert sorted(path.name for path in (tmp_path / "cifar10").iterdir()) == ["data_batch_1.bin", "test_batch.bin"]
    assert (tmp_path / "cifar10" / "data_batch_1.bin").read_bytes() == b"abc"


def test_the_real_data(batches: Path) -> None:
    data = load("cifar10", data_dir=batches)
    assert data.sizes.tolist() == [500] * 100
    assert data.test.x.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.test.y).tolist() == [1000] * 10
    labels = torch.cat([data.client(k).y for k in range(100)])
    assert torch.bincount(labels).tolist() == [5000] * 10


@pytest.mark.usefixtures("offline")
def test_a_damaged_batch_is_named_and_removed(
    batches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = _links(batches, tmp_path) / "data_batch_3.bin"
    damaged.unlink()
    damaged.write_bytes(b"\0" * 3073)
    with pytest.raises(DataError, match=r"cifar10 needs a file .*(\n.*)*cifar10/cifar-10-binary.tar.gz"):
        load("cifar10", data_dir=tmp_path)
    assert "data_batch_3.bin is damaged" in capsys.readouterr().err
    assert not damaged.exists()


def _links(batches: Path, folder: Path) -> Path:
    target = folder / "cifar10"
    target.mkdir()
    for path in (batches / "cifar10").glob("*.bin"):
        (target / path.name).symlink_to(path)
    return target
