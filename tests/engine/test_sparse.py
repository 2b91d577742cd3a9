"""Products that skip zeros give the bits of those that do not, and what is not finite is not skipped."""

from math import inf, isnan

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedavg import Examples, Task
from fedavg.engine import native_epoch
from fedavg.engine.trainer import Trainer
from fedavg.optimizers import SGD
from toys import epoch, epoch_by

needs_kernels = pytest.mark.skipif(native_epoch.built() is None, reason="no kernels here")
#: Sizes that no tile and no vector divides; k is summed in two pieces.
ROWS, WIDTH, HIDDEN, CLASSES = 603, 784, 203, 10
#: One row of 16 is looked at to find out whether a matrix is mostly zeros (sparse.h).
LOOKED_AT = slice(8, None, 16)
IGNORED = -100


def task(width: int) -> Task:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    return Task("wide", build, loss=F.cross_entropy)


def mostly_zeros(width: int, density: float = 0.15) -> Examples:
    """Whose rows that are looked at count for nothing."""
    numbers = torch.Generator().manual_seed(1)
    x = torch.rand(ROWS, width, generator=numbers)
    x[torch.rand(ROWS, width, generator=numbers) > density] = 0
    y = torch.randint(0, CLASSES, (ROWS,), generator=numbers)
    y[LOOKED_AT] = IGNORED
    return Examples(x, y)


def without_zeros_where_it_is_looked(examples: Examples) -> Examples:
    x = examples.x.clone()
    x[LOOKED_AT] = 1.0
    return Examples(x, examples.y)


def step(examples: Examples, engine: str = "graph", optimizer: SGD | None = None) -> tuple[torch.Tensor, float]:
    """Two steps; the weights after them, and the loss on the way."""
    trainer = Trainer(task(examples.x.shape[1]), seed=3, optimizer=optimizer)
    trainer.choose_engine(engine, examples)
    assert engine == "plain" or "native steps" in trainer.engine.name
    steps = trainer.steps(0.1)
    losses = [float(epoch_by(trainer, examples, ROWS, steps)) for _ in range(2)]
    return trainer.weights.clone(), sum(losses)


@needs_kernels
@pytest.mark.parametrize("width", [WIDTH, 97])
@pytest.mark.parametrize("optimizer", [None, SGD(momentum=0.9)])
def test_skipped_zeros_change_no_bit(width: int, optimizer: SGD | None) -> None:
    """The same step twice, once on examples that look as if hardly any number were zero."""
    examples = mostly_zeros(width)
    skipping, not_skipping = (
        step(each, optimizer=optimizer) for each in (examples, without_zeros_where_it_is_looked(examples))
    )
    assert torch.equal(skipping[0].view(torch.int32), not_skipping[0].view(torch.int32))
    assert skipping[1] == not_skipping[1]


@needs_kernels
@pytest.mark.parametrize("density", [0.0, 0.15, 0.29, 1.0])
def test_a_step_on_zeros_equals_the_plain_path(density: float) -> None:
    examples = mostly_zeros(WIDTH, density)
    (ours, our_loss), (plain, plain_loss) = step(examples), step(examples, "plain")
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
    assert our_loss == pytest.approx(plain_loss, rel=1e-5)


@needs_kernels
def test_zero_times_infinity_is_not_skipped() -> None:
    examples = mostly_zeros(WIDTH)
    examples.x[:, 5] = 0
    trainer = Trainer(task(WIDTH), seed=3)
    trainer.choose_engine("graph", examples)
    weights = trainer.weights.clone()
    weights[5] = inf  # of the first unit's weights, the one of a pixel that is zero everywhere
    trainer.load(weights)
    assert isnan(float(epoch(trainer, examples, ROWS, 0.1)))
