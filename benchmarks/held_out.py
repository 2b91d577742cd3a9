"""Plans that the cost model was never fitted to: other models, optimisers, algorithms, codecs and client sizes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedavg import Plan, Task
from fedavg.bench.workloads import between, language, mnist, sequences, split, unlike_sizes

#: Rounds run of each: a few for warm-up, and enough for a median after them.
ROUNDS = 12
#: Words of X6, and how many of them are in a sequence.
WORDS, UNROLL = 10_000, 10


def wide() -> nn.Module:
    """784-2000-2000-10: 5.6 million weights."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 10)
    )


def filters() -> nn.Module:
    """Kernels of 3 x 3 on images of 24 x 24 in colour, with dropout: no native step."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 36, 10),
    )  # fmt: skip


class Translator(nn.Module):
    """Three layers of a transformer of PyTorch's own, wider than W5's."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.Sequential(nn.Embedding(100, 128), nn.TransformerEncoder(layer, 3), nn.Linear(128, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) to scores (B, 100, T), as a loss over classes takes them."""
        scores: torch.Tensor = self.layers(x).transpose(1, 2)
        return scores


def images() -> Plan:
    rng, sizes = np.random.default_rng(5), between(50, 250, 40)
    x = torch.from_numpy(rng.standard_normal((sum(sizes), 3, 24, 24), np.float32))
    y = torch.from_numpy(rng.integers(0, 10, sum(sizes)))
    return Plan(task=Task("filters", filters), data=split("images", x, y, sizes), C=0.2, E=2, B=20, lr=0.01)


def words() -> Plan:
    """The paper's word LSTM: 4.95 million weights."""
    data = sequences("words", between(20, 80, 30), WORDS, UNROLL)
    return Plan(task="posts-lstm", data=data, C=0.3, E=1, B=8)


PLANS: dict[str, Callable[[], Plan]] = {
    "X1: 2NN, SCAFFOLD, E=5, B=50": lambda: mnist("mnist-2nn", 50, E=5, algorithm="scaffold"),
    "X2: 2NN, AdamW, B=20": lambda: mnist("mnist-2nn", 20, optimizer="adamw", lr=0.001),
    "X3: CNN, B=inf, 8-bit updates": lambda: mnist("mnist-cnn", float("inf"), codec="quantise:bits=8"),
    "X4: perceptron of 5.6 million weights, B=32": lambda: replace(mnist("mnist-2nn", 32), task=Task("wide", wide)),
    "X5: 3 x 3 filters with dropout, E=2, B=20": images,
    "X6: the paper's word LSTM, B=8": words,
    "X7: transformer of 3 layers, D=128": lambda: language(Task("translator", Translator)),
    "X8: 2NN, clients of 20 to 3,000 examples": lambda: replace(unlike_sizes(between(20, 3000, 30)), C=0.3),
}


def plan_of(name: str, workers: int) -> Plan:
    return replace(PLANS[name](), rounds=ROUNDS, eval_every=ROUNDS, workers=workers)
