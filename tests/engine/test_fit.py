"""Ordinary modules and data: image layouts, and types of x and y."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedavg
from fedavg import ArrayData, Examples, Task, trees
from fedavg.engine.fit import Fit
from fedavg.engine.trainer import Trainer
from fedavg.errors import TaskError
from toys import TOY, blobs, epoch


class Net(nn.Module):
    """The model of a well-known quickstart: it flattens by `view`, which images in channels-last order do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Flattened(Net):
    """The same function, which any order of memory allows."""

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def images(n):
    g = torch.Generator().manual_seed(1)
    return Examples(torch.rand(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g))


@pytest.mark.parametrize("engine", ["auto", "plain"])
def test_a_module_that_flattens_by_view_keeps_its_own_layout(engine):
    ends = []
    for net in (Net, Flattened):
        trainer = Trainer(Task("net", net), seed=0)
        trainer.choose_engine(engine, trees.take(images(8), slice(4)))
        epoch(trainer, images(8), 4, 0.1)
        trainer.evaluate(images(3))
        ends.append(trainer.weights.clone())
        assert trainer.prepare(images(2).x).is_contiguous() == (net is Net)
    assert (ends[0] - ends[1]).norm() <= 1e-4 * (ends[0] - Trainer(Task("n", Net), seed=0).weights).norm()


def test_the_papers_models_stay_channels_last():
    trainer = Trainer(fedavg.tasks.TASKS["mnist-cnn"], seed=0)
    trainer.choose_engine("plain", Examples(torch.zeros(4, 28, 28, dtype=torch.uint8), torch.arange(4)))
    assert trainer._fit == Fit(channels_last=True, targets=None)


def run(task, x, y, **changes):
    data = ArrayData("data", x, y, [np.arange(0, 6), np.arange(6, 12)], Examples(x, y))
    plan = fedavg.Plan(**{"task": task, "data": data, "C": 1, "B": 4, "rounds": 2, "workers": 1, "lr": 0.1, **changes})
    return fedavg.run(plan)


X, Y = blobs(12, seed=1)
LOGIT = Task(
    "logit",
    lambda: nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)),
    loss=F.binary_cross_entropy_with_logits,
    metrics={"accuracy": lambda output, y: (output > 0) == (y > 0.5)},
)
BINARY = Task("binary", lambda: nn.Linear(8, 2))


@pytest.mark.parametrize("engine", ["auto", "plain"])
@pytest.mark.parametrize(
    ("task", "given", "as_usual"),
    [
        (TOY, (X, Y.int()), (X, Y)),
        (TOY, (X, Y.short()), (X, Y)),
        (TOY, (X.double(), Y), (X, Y)),
        (TOY, (X.t().contiguous().t(), Y), (X, Y)),
        (TOY, (torch.stack([X, X], 2)[:, :, 0], torch.stack([Y, Y], 1)[:, 0]), (X, Y)),
        (BINARY, (X, Y > 0), (X, (Y > 0).long())),
        (LOGIT, (X, Y > 0), (X, (Y > 0).float())),
        (LOGIT, (X, (Y > 0).long()), (X, (Y > 0).float())),
        (LOGIT, (X, (Y > 0).double()), (X, (Y > 0).float())),
    ],
)
def test_types_that_mean_the_same_train_the_same(task, given, as_usual, engine):
    got, expected = run(task, *given, engine=engine), run(task, *as_usual, engine=engine)
    assert got.summary.model_sha256 == expected.summary.model_sha256
    assert got.train_loss.tolist() == expected.train_loss.tolist()


@pytest.mark.parametrize("B", [4, "inf"])
def test_tensors_that_are_not_contiguous_train_on_the_fast_path(B):
    """Stored order (B = inf) and shuffled, of a module that looks at the memory of its input."""
    task = Task("t", lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 3)))
    x = X.view(12, 4, 2)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    assert run(task, turned, Y, B=B).summary.model_sha256 == run(task, x, Y, B=B).summary.model_sha256


def test_what_no_type_makes_fit_is_refused_as_it_was_given():
    trainer = Trainer(TOY, seed=0)
    with pytest.raises(TaskError, match=r"'toy' cannot be trained on x \(4, 5\) torch.float32, y \(4,\) torch.int32"):
        trainer.choose_engine("auto", Examples(torch.rand(4, 5), torch.zeros(4, dtype=torch.int32)))


def test_inputs_of_unlike_numbers_of_rows_are_refused():
    with pytest.raises(fedavg.FedAvgError, match="expected the same first dimension"):
        ArrayData("data", (X, X[:5]), Y, [np.arange(2)], Examples(X, Y))
