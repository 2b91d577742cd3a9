"""Small real problems that train in milliseconds."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedavg import ArrayData, Examples, Plan, Task

SIZES = (7, 12, 0, 5, 20, 9)


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n points around three centres in eight dimensions, with their centre's number."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = 2 * np.eye(3, 8)[y] + 0.7 * rng.standard_normal((n, 8))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def toy_data(sizes: tuple[int, ...] = SIZES) -> ArrayData:
    """Clients of the given sizes; one has nothing."""
    x, y = blobs(sum(sizes), seed=1)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return ArrayData("blobs", x, y, parts, Examples(*blobs(60, seed=2)))


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


TOY = Task("toy", small_net, eval_batch=25)


def toy_plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "task": TOY, "data": toy_data(), "C": 0.5, "E": 2, "B": 4, "lr": 0.1, "rounds": 4, "workers": 2,
    }  # fmt: skip
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def put(path: Path, content: bytes) -> None:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
