"""CIFAR-10 (§3): 50,000 training and 10,000 test colour images of ten classes. Input: the official binary batches.

x: (N, 3, 32, 32) uint8, y: (N,) int64. Crops and colour changes belong to the task, not to the data.
"""

import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from fedavg.data.dataset import Dataset, RemoteFile, Request, StoredFile
from fedavg.data.download import obtain_all
from fedavg.data.federated import ArrayData
from fedavg.files import write_atomically
from fedavg.seeds import NONE, rng
from fedavg.types import Examples, FederatedData

_CLIENTS = 100
_PIXELS = 3 * 32 * 32
#: A label byte, then the red, green and blue planes of a row-by-row image.
_RECORD = 1 + _PIXELS
_BATCH_BYTES = 10_000 * _RECORD

_BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def load(request: Request) -> FederatedData:
    *train, test = _read_batches(request.data_dir)
    both = np.concatenate(train)
    x, y = split_records(both)
    draw = rng(request.seed, NONE, NONE, "partition")
    parts = request.partition.deal(y.numpy(), request.clients or _CLIENTS, draw)
    return ArrayData("cifar10", x, y, parts, Examples(*split_records(test)))


def split_records(records: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of records, shape (N, 3073) uint8."""
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(records[:, 0].astype(np.int64))


def _read_batches(data_dir: Path) -> list[np.ndarray]:
    """The six batches, shape (10000, 3073) uint8 each, the test batch last; unpacked from the archive if need be."""
    files = obtain_all(CIFAR10, data_dir)
    if len(files) != len(_BATCHES):
        unpack_archive(files[0].path, data_dir)
        files = obtain_all(CIFAR10, data_dir)
    return [np.fromfile(file.path, np.uint8).reshape(-1, _RECORD) for file in files]


def unpack_archive(archive: Path, data_dir: Path) -> None:
    """Puts the batches of the archive beside it, so that the next start need not unpack 170 MB again."""
    folder = data_dir / "cifar10"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            content = tar.extractfile(member)
            if name in _BATCHES and content is not None:
                write_atomically(folder / name, content.read())


def _batch(name: str) -> RemoteFile:
    folders = ("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin")
    return RemoteFile(tuple(StoredFile(f"{folder}/{name}", _BATCHES[name], _BATCH_BYTES) for folder in folders))


CIFAR10 = Dataset(
    name="cifar10",
    summary="50,000 + 10,000 colour images of ten classes, 32 x 32",
    licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
    clients=_CLIENTS,
    partitions=("iid", "shards", "dirichlet", "labels", "unbalanced", "zoned"),
    files=(
        RemoteFile(
            (
                StoredFile(
                    "cifar10/cifar-10-binary.tar.gz",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    170052171,
                ),
            ),
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
                "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/cifar-10-binary.tar.gz",
            ),
        ),
    ),
    load=load,
    contents=tuple(_batch(name) for name in _BATCHES),
    paper="100 clients x 500 training examples, IID; 10,000 test",
)
