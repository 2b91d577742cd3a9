"""Figure 1 (§2): the loss of mixtures of two models, trained from different initial weights or from shared ones.

Two MNIST 2NNs w and w', each trained on 600 IID examples that the other does not have (SGD, eta 0.1, 240 updates of
50); then the loss on the full training set of θw + (1-θ)w', for 50 values of θ.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg import seeds, trees
from fedavg.campaign.records import RecordError, Records
from fedavg.data import load
from fedavg.engine.model import Model
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.files import write_atomically
from fedavg.metrics import report
from fedavg.tasks.mnist import MNIST_2NN
from fedavg.types import Examples, FederatedData

ETA: Final = 0.1
BATCH: Final = 50
UPDATES: Final = 240
POINTS: Final = 50
FILE: Final = "figure1.json"
COMMAND: Final = "fedavg paper figure1"


@dataclass(frozen=True)
class Mixtures:
    """Loss on the training set by θ (θ = 1 is the first model alone, 0 the second), for both kinds of start."""

    theta: tuple[float, ...]
    different: tuple[float, ...]
    shared: tuple[float, ...]
    seed: int
    seconds: float
    date: str
    command: str
    versions: dict[str, str]


def compute(seed: int = 0, data_dir: Path | None = None, points: int = POINTS) -> Mixtures:
    with one_thread():
        return _compute(seed, data_dir, points)


def _compute(seed: int, data_dir: Path | None, points: int) -> Mixtures:
    began = perf_counter()
    data = load("mnist", "iid", seed=seed, data_dir=data_dir)
    theta = np.linspace(-0.2, 1.2, points)
    first, second = initial_weights(seed), initial_weights(seed + 1)
    parents = [trained(data, client, start, seed) for client, start in ((0, first), (1, first), (1, second))]
    return Mixtures(
        theta=tuple(round(float(t), 6) for t in theta),
        different=mixture_losses(data, parents[0], parents[2], theta),
        shared=mixture_losses(data, parents[0], parents[1], theta),
        seed=seed,
        seconds=round(perf_counter() - began, 1),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=COMMAND,
        versions={"fedavg": version("fedavg"), "torch": torch.__version__},
    )


def initial_weights(seed: int) -> Tensor:
    return Model(MNIST_2NN, seed).vector.clone()


def trained(data: FederatedData, client: int, start: Tensor, seed: int) -> Tensor:
    """The weights after 240 updates on one client's 600 examples: 20 epochs, each in a new order."""
    trainer = Trainer(MNIST_2NN, seed)
    trainer.load(start)
    examples = data.client(client)
    draw = seeds.rng(seed, seeds.NONE, client, "figure 1")
    epochs = UPDATES // -(-len(examples) // BATCH)
    for _ in range(epochs):
        order = torch.from_numpy(draw.permutation(len(examples)))
        steps = trainer.steps(ETA)
        for piece in trainer.pieces(trees.take(examples, order), BATCH, draw):
            trainer.epoch_for(piece, steps)(piece, steps)
    return trainer.weights.clone()


def mixture_losses(
    data: FederatedData, w: Tensor, w_other: Tensor, theta: Sequence[float] | np.ndarray
) -> tuple[float, ...]:
    trainer = Trainer(MNIST_2NN, 0)
    clients = [data.client(k) for k in range(len(data))]
    everything = Examples(trees.joined([c.x for c in clients]), trees.joined([c.y for c in clients]))
    losses = []
    for t in theta:
        trainer.load(float(t) * w + (1 - float(t)) * w_other)
        losses.append(round(report(trainer.task.judged_by, trainer.evaluate(everything))["loss"], 5))
    return tuple(losses)


def save(mixtures: Mixtures, records: Path) -> None:
    records.mkdir(parents=True, exist_ok=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(mixtures).items()]
    write_atomically(records / FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def known(records: Records) -> Mixtures | None:
    """What was computed here earlier, or came with the package."""
    found = read(records.directory)
    return read(records.beside) if found is None and records.beside else found


def read(records: Path) -> Mixtures | None:
    """What was computed before; None if nothing was."""
    path = records / FILE
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
        return Mixtures(**(document | lists))
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not a record of Figure 1 ({error}); remove it") from None


def draw(mixtures: Mixtures, folder: Path) -> tuple[Path, ...]:
    from fedavg.paper.figures import grid_of, new_figure, save_figure

    figure = new_figure("Figure 1. Loss on the training set of θw + (1-θ)w', two MNIST 2NNs", panels=2)
    panels = (("different initial weights", mixtures.different), ("shared initial weights", mixtures.shared))
    for axes, (title, losses) in zip(grid_of(figure, 2), panels, strict=True):
        axes.plot(mixtures.theta, losses, color="C0")
        for parent in (0.0, 1.0):
            axes.axvline(parent, color="#888888", linewidth=0.8, linestyle=":")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("mixing weight θ", fontsize=9)
        axes.set_ylabel("loss", fontsize=9)
        axes.grid(alpha=0.25)
    return save_figure(figure, 1, folder)
