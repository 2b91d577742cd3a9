import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedavg import Examples, Task
from fedavg.engine.trainer import Trainer
from fedavg.errors import TaskError
from toys import TOY, blobs, epoch


def one_weight():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    return module


SQUARED = Task(
    "squared",
    one_weight,
    loss=lambda output, y: F.mse_loss(output[:, 0], y),
    metrics={"error": lambda output, y: (output[:, 0] - y).abs()},
    eval_batch=2,
)


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_an_epoch_by_hand(engine):
    """w = 2; batches {(1, 1)} then {(2, 0)}, eta = 0.1: w -= 0.1 * 2x(wx - y), so 2 -> 1.8 -> 0.36."""
    trainer = Trainer(SQUARED, seed=0)
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 0.0])
    trainer.choose_engine(engine, Examples(x[:1], y[:1]))
    total = epoch(trainer, Examples(x, y), 1, 0.1)
    assert float(trainer.weights) == pytest.approx(0.36)
    assert float(total) == pytest.approx(1.0 + 3.6**2)


def test_a_gradient_by_hand():
    trainer = Trainer(SQUARED, seed=0)
    gradient, loss = trainer.gradient(Examples(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 0.0])))
    assert gradient.tolist() == [pytest.approx((2 * 1 * 1 + 2 * 2 * 4) / 2)]
    assert loss == pytest.approx((1 + 16) / 2)


def test_metrics_are_sums_over_all_predictions():
    trainer = Trainer(SQUARED, seed=0)
    examples = Examples(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 0.0, 7.0]))
    assert trainer.evaluate(examples)["error"].tolist() == [1.0 + 4.0 + 1.0, 3]


def test_evaluation_is_in_evaluation_mode():
    task = Task("t", lambda: nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.9), nn.BatchNorm1d(3)))
    trainer = Trainer(task, seed=0)
    examples = Examples(*blobs(20, seed=0))
    before = trainer.weights.clone()
    first, second = trainer.evaluate(examples), trainer.evaluate(examples)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(trainer.weights, before)
    assert trainer.model.module.training


def test_a_metric_that_does_not_fit_is_named():
    with pytest.raises(TaskError, match="'toy' cannot be evaluated on x"):
        Trainer(TOY, seed=0).evaluate(Examples(torch.rand(2, 8), torch.zeros(3, dtype=torch.int64)))


def test_seeded_draws_leave_the_generator_alone():
    trainer = Trainer(TOY, seed=0)
    before = torch.get_rng_state()
    with trainer.seeded(5):
        first = torch.rand(3)
    with trainer.seeded(5):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)
