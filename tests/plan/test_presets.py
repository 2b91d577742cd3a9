"""Every preset learns: on tiny data of the same form always, on the real data in the slow tests."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedavg import ArrayData, Examples, Plan, Round, train
from fedavg.errors import DataError
from fedavg.plan import PRESETS, load_plan

SHARED = Path(__file__).parents[3] / "shared" / "data"


def stripes(shape: tuple[int, ...], n: int) -> Examples:
    """Images with a bright stripe, and which of ten places it is in."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 10
    x = rng.integers(0, 40, (n, *shape))
    for image, place in zip(x, y, strict=True):
        image[..., 2 * place + 2 : 2 * place + 8, :] += 200
    return Examples(torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(y))


def counting(vocabulary: int, unroll: int, n: int) -> Examples:
    """Sequences in which every token is followed by the next one; the last target is padding."""
    start = np.random.default_rng(0).integers(3, 9, (n, 1))
    tokens = torch.from_numpy((start + np.arange(unroll + 1)) % 7 + 3).clamp(max=vocabulary - 1)
    y = tokens[:, 1:].clone()
    y[:, -1] = -100
    return Examples(tokens[:, :-1].clone(), y)


TINY = {
    "mnist-2nn": lambda: stripes((28, 28), 60),
    "mnist-cnn": lambda: stripes((28, 28), 60),
    "cifar-cnn": lambda: stripes((3, 32, 32), 60),
    "shakespeare-lstm": lambda: counting(258, 80, 24),
    "posts-lstm": lambda: counting(10_000, 10, 24),
}
#: Rates at which a few rounds on tiny data show.
RATE = {"mnist-2nn": 0.1, "mnist-cnn": 0.2, "cifar-cnn": 0.1, "shakespeare-lstm": 1.0, "posts-lstm": 2.0}


def losses(plan: Plan) -> list[float]:
    return [event.train_loss for event in train(plan) if isinstance(event, Round)]


@pytest.mark.parametrize("preset", PRESETS)
def test_it_learns_tiny_data_of_the_same_form(preset):
    examples = TINY[preset]()
    half = len(examples) // 2
    parts = [np.arange(half), np.arange(half, len(examples))]
    data = ArrayData("tiny", examples.x, examples.y, parts, Examples(examples.x[:5], examples.y[:5]))
    changes = {"data": data, "C": 1, "E": 1, "B": 6, "lr": RATE[preset], "rounds": 5, "eval_every": 5}
    falling = losses(load_plan(preset, changes))
    assert falling[-1] < 0.95 * falling[0]


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_it_learns_the_real_data(preset, capfd):
    folder = os.environ.get("FEDAVG_DATA") or str(SHARED)
    changes = {"data_dir": folder, "rounds": 4, "E": 1, "eval_every": 2}
    changes |= {"C": 0.02} if preset != "posts-lstm" else {"C": 0.0005}
    try:
        falling = losses(load_plan(preset, changes))
    except DataError as error:
        pytest.skip(f"the data of {preset} is not in {folder}: {error}")
    assert falling[-1] < 0.98 * falling[0]
