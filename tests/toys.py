"""Small real problems that train in milliseconds."""

import signal
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedavg import ArrayData, Examples, Plan, Task
from fedavg.engine.pieces import Epochs, cut
from fedavg.engine.trainer import Trainer
from fedavg.optimizers import Steps

SIZES = (7, 12, 0, 5, 20, 9)


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n points around three centres in eight dimensions, labelled by their centre."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = 2 * np.eye(3, 8)[y] + 0.7 * rng.standard_normal((n, 8))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def toy_data(sizes: tuple[int, ...] = SIZES) -> ArrayData:
    """Clients of the given sizes; one has nothing."""
    x, y = blobs(sum(sizes), seed=1)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return ArrayData("blobs", x, y, parts, Examples(*blobs(60, seed=2)))


def passed(engine: Epochs, examples: Examples, batch: int, steps: Steps) -> Tensor:
    """One pass of an engine over prepared examples; the sum of the losses."""
    return torch.tensor([engine.epoch_for(piece, steps)(piece, steps) for piece in cut(examples, batch)]).sum()


def epoch(trainer: Trainer, examples: Examples, batch: int, lr: float) -> Tensor:
    """One local epoch of the trainer's optimiser, from a fresh start, over the examples in order."""
    return epoch_by(trainer, examples, batch, trainer.steps(lr))


def epoch_by(trainer: Trainer, examples: Examples, batch: int, steps: Steps) -> Tensor:
    """The same with steps that are already under way; the sum of the losses."""
    with trainer.explained("trained", examples):
        pieces = trainer.pieces(examples, batch, np.random.default_rng(0))
        losses = [piece.of_raw(trainer.epoch_for(piece, steps)(piece, steps)) for piece in pieces]
    return torch.tensor(losses).sum()


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


TOY = Task("toy", small_net, eval_batch=25)
#: The same under another name.
OTHER = Task("other", small_net, eval_batch=25)


def toy_plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "task": TOY, "data": toy_data(), "C": 0.5, "E": 2, "B": 4, "lr": 0.1, "rounds": 4, "workers": 2,
    }  # fmt: skip
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def one_weight() -> nn.Module:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    return module


#: One weight that starts at 2 and is fitted to y = w x by squared error.
LINE = Task(
    "line", one_weight, loss=lambda o, y: F.mse_loss(o[:, 0], y), metrics={"error": lambda o, y: (o[:, 0] - y).abs()}
)
#: ∇F_k(w) of the clients of `line_data`, and their n_k.
SLOPES = (lambda w: 2 * (w - 1), lambda w: 4 * w - 4 / 3)
COUNTS = (1, 3)


def line_data() -> ArrayData:
    """Client 0 has one example, client 1 has three: their weights must be 1/4 and 3/4."""
    x, y = torch.tensor([[1.0], [1.0], [1.0], [2.0]]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    return ArrayData("line", x, y, [np.array([0]), np.array([1, 2, 3])], Examples(x, y))


def line_plan(**changes: object) -> Plan:
    """Both clients in every round, with their whole gradients: a few numbers that plain Python can follow."""
    values: dict[str, object] = {
        "task": LINE, "data": line_data(), "C": 1, "E": 2, "B": "inf", "lr": 0.1, "rounds": 3, "workers": 1,
    }  # fmt: skip
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def line_change(w: float, steps: int = 2, eta: float = 0.1) -> float:
    """FedAvg's change from w on the line: the mean over both clients of where their steps end."""
    total = 0.0
    for n, slope in zip(COUNTS, SLOPES, strict=True):
        end = w
        for _step in range(steps):
            end -= eta * slope(end)
        total += n * (end - w)
    return total / sum(COUNTS)


#: For `Popen(preexec_fn=...)`: the child handles Ctrl-C even if the tests ignore it, as processes do that a shell
#: started in the background.
heed_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)


def put(path: Path, content: bytes) -> None:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
