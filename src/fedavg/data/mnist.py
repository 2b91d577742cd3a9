"""MNIST (§3): 60,000 training and 10,000 test images of digits. Input: idx files, or the copy in the package.

x: (N, 28, 28) uint8, which tasks scale to [0, 1]; with pixels=centred float32 in [-0.5, 0.5], as in TensorFlow's MNIST
example of the paper's time. y: (N,) int64.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedavg.data import embedded
from fedavg.data.dataset import Dataset, RemoteFile, Request, StoredFile
from fedavg.data.download import locate
from fedavg.data.federated import ArrayData
from fedavg.data.idx import parse_idx, read_bytes
from fedavg.seeds import NONE, rng
from fedavg.specs import written
from fedavg.types import Examples, FederatedData

_CLIENTS = 100
_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


@dataclass(frozen=True)
class PixelSettings:
    """The range of pixels: [0, 1], or [-0.5, 0.5]."""

    pixels: Literal["unit", "centred"] = "unit"


def load(request: Request) -> FederatedData:
    train, test = (_scaled(half, request.settings.pixels) for half in read(request.data_dir))
    draw = rng(request.seed, NONE, NONE, "partition")
    parts = request.partition.deal(train.y.numpy(), request.clients or _CLIENTS, draw)
    return ArrayData(written("mnist", request.settings), train.x, train.y, parts, test)


def _scaled(examples: Examples, pixels: str) -> Examples:
    if pixels == "unit":
        return examples
    # By NumPy: PyTorch would start its thread pool, which does not survive the fork of the workers.
    values = np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)
    return Examples(torch.from_numpy(values[examples.x.numpy()]), examples.y)


def read(data_dir: Path) -> tuple[Examples, Examples]:
    """Training and test examples: from the data directory if all four files are there, else from the package."""
    with ThreadPoolExecutor(len(FILES)) as pool:
        found = list(pool.map(lambda file: _read(file, data_dir), FILES.values()))
    here = {name: raw for name, raw in zip(FILES, found, strict=True) if raw is not None}
    raw = here if len(here) == len(FILES) else embedded.read_all()
    return _examples(raw, "train"), _examples(raw, "t10k")


def _read(file: RemoteFile, data_dir: Path) -> np.ndarray | None:
    found = locate(file, data_dir)
    return None if found is None else np.frombuffer(read_bytes(found[0]), np.uint8)


def _examples(raw: dict[str, np.ndarray], half: str) -> Examples:
    images, labels = f"{half}-images-idx3-ubyte", f"{half}-labels-idx1-ubyte"
    x = np.require(parse_idx(raw[images], 3, images), requirements="W")
    y = parse_idx(raw[labels], 1, labels).astype(np.int64)
    return Examples(torch.from_numpy(x), torch.from_numpy(y))


def _file(name: str, packed_sha256: str, packed_bytes: int, plain_bytes: int) -> RemoteFile:
    return RemoteFile(
        (
            StoredFile(f"mnist/{name}.gz", packed_sha256, packed_bytes),
            StoredFile(f"mnist/{name}", embedded.SHA256[name], plain_bytes),
        ),
        tuple(f"{mirror}{name}.gz" for mirror in _MIRRORS),
    )


FILES = {
    "train-images-idx3-ubyte": _file(
        "train-images-idx3-ubyte", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422, 47040016
    ),
    "train-labels-idx1-ubyte": _file(
        "train-labels-idx1-ubyte", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881, 60008
    ),
    "t10k-images-idx3-ubyte": _file(
        "t10k-images-idx3-ubyte", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877, 7840016
    ),
    "t10k-labels-idx1-ubyte": _file(
        "t10k-labels-idx1-ubyte", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542, 10008
    ),
}

MNIST = Dataset(
    name="mnist",
    summary="60,000 + 10,000 grey images of digits, 28 x 28; a copy is in the package",
    licence="CC BY-SA 3.0",
    clients=_CLIENTS,
    partitions=("iid", "shards", "dirichlet", "labels", "unbalanced", "zoned"),
    files=tuple(FILES.values()),
    load=load,
    paper="100 clients x 600 training examples, IID or two shards of 300 each; 10,000 test",
    settings=PixelSettings,
    built_in=True,
)
