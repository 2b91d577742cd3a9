from pathlib import Path

import pytest
import torch

from fedavg.data import embedded, load
from fedavg.errors import DataError, PlanError

pytestmark = pytest.mark.usefixtures("empty_dir")


def test_the_embedded_default() -> None:
    data = load("mnist", "unbalanced:0", clients=1)
    everything = data.client(0)
    assert everything.x.shape == (60_000, 28, 28)
    assert everything.x.dtype == torch.uint8
    assert everything.y.dtype == torch.int64
    assert data.test.x.shape == (10_000, 28, 28)
    # The published class counts, and the mean pixel that normalisers of MNIST use.
    assert torch.bincount(everything.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(data.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(everything.x.numpy().mean() / 255) == pytest.approx(0.1307, abs=5e-5)


@pytest.mark.parametrize(("spec", "sizes"), [("iid", {600}), ("shards", {600}), ("dirichlet:0.5", {600})])
def test_partitions_of_the_paper(spec: str, sizes: set[int]) -> None:
    data = load("mnist", spec)
    assert len(data) == 100
    assert set(data.sizes.tolist()) == sizes


def test_the_seed_changes_the_partition_and_nothing_else() -> None:
    first, again, other = (load("mnist", "iid", 10, seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert torch.equal(first.test.x, other.test.x)


def test_files_in_the_data_directory_are_read(empty_dir: Path) -> None:
    expected = load("mnist", "shards")
    _lay_out(empty_dir / "mnist")
    assert load("mnist", "shards").fingerprint == expected.fingerprint


def test_a_wrong_file_is_named(empty_dir: Path) -> None:
    _lay_out(empty_dir / "mnist")
    labels = empty_dir / "mnist" / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte is damaged or another version: SHA-256 is"):
        load("mnist")


def test_the_official_files_equal_the_copy(real_data: Path, empty_dir: Path) -> None:
    assert load("mnist", data_dir=real_data).fingerprint == load("mnist", data_dir=empty_dir).fingerprint


@pytest.mark.parametrize(
    ("name", "spec", "clients", "message"),
    [
        ("mnits", "iid", 100, "data: got 'mnits'; expected one of mnist:"),
        ("mnist:pixels=red", "iid", 100, r"data: got 'mnist:pixels=red'; expected 'mnist:\[pixels=unit\|centred\]'"),
        ("mnist:centred:unit", "iid", 100, "data: got 'mnist:centred:unit'; expected"),
        ("mnist:size=3", "iid", 100, "data: got 'mnist:size=3'; expected"),
        ("mnist:pixels=unit:pixels=unit", "iid", 100, "expected 'mnist"),
        ("cifar10:pixels=centred", "iid", 100, "data: got 'cifar10:pixels=centred'; expected 'cifar10'"),
        ("mnist", "natural", 100, "mnist cannot be split by natural. Use one of: iid, shards:\\[per_client=2"),
        ("mnist", "iid", 0, "clients = 0: expected 1 or more"),
        ("mnist", "iid", 60_001, "needs at least 60001 examples"),
    ],
)
def test_what_can_not_be_is_refused(name: str, spec: str, clients: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load(name, spec, clients)


def test_centred_pixels_are_the_same_images_in_minus_a_half_to_a_half() -> None:
    unit, centred = load("mnist", "shards"), load("mnist:pixels=centred", "shards")
    assert centred.name == "mnist:pixels=centred"
    for raw, scaled in ((unit.client(3), centred.client(3)), (unit.test, centred.test)):
        assert scaled.x.dtype == torch.float32
        assert torch.equal(scaled.x, raw.x / 255 - 0.5), "and so is what a task makes of them"
        assert torch.equal(scaled.y, raw.y)
    assert (float(centred.test.x.min()), float(centred.test.x.max())) == (-0.5, 0.5)
    assert unit.fingerprint == load("mnist:pixels=unit", "shards").fingerprint != centred.fingerprint


def _lay_out(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, raw in embedded.read_all().items():
        (folder / name).write_bytes(raw.tobytes())
