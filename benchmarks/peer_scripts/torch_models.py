"""The workloads' models in PyTorch, for peers that train with it."""

import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOURCE = Path(__file__).parents[2] / "src" / "fedavg" / "bench" / "modules.py"
CHARACTERS = 258


class CharLSTM(nn.Module):
    """As PyTorch has it: no peepholes, two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.decoder = nn.Linear(256, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.lstm(self.embedding(x))[0]).transpose(1, 2)


def two_nn() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def build(name: str) -> nn.Module:
    """By the name of its task."""
    torch.manual_seed(0)
    own = {"mnist-2nn": two_nn, "mnist-cnn": cnn, "shakespeare-lstm": CharLSTM}
    if name in own:
        return own[name]()
    spec = importlib.util.spec_from_file_location("modules", SOURCE)
    modules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modules)
    return {"encoder": modules.Encoder, "resnet": modules.resnet, "adapted": modules.AdaptedTransformer}[name]()


def trained(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y)
