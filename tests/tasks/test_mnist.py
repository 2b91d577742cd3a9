"""The MNIST models."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedavg.tasks.mnist import cnn


def relu_before_pooling() -> nn.Module:
    """The CNN with its layers in the order in which the paper's time wrote them."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def test_the_order_of_relu_and_pooling_changes_no_bit():
    torch.manual_seed(0)
    ours, other = cnn(), relu_before_pooling()
    other.load_state_dict(ours.state_dict())
    x, y = torch.rand(8, 1, 28, 28), torch.arange(8)
    outputs = [module(x) for module in (ours, other)]
    assert torch.equal(*outputs)
    for output in outputs:
        cross_entropy(output, y).backward()
    for a, b in zip(ours.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
        assert a.grad.abs().sum() > 0
