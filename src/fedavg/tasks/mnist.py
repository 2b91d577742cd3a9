"""The two MNIST models (§3 of the paper). Input: images as (B, 28, 28) bytes; output: (B, 10) logits."""

from torch import Tensor, nn

from fedavg.tasks.task import Task, as_float


def two_nn() -> nn.Module:
    """784-200-200-10 with ReLU: 199,210 parameters."""
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(),
        nn.Linear(200, 200), nn.ReLU(),
        nn.Linear(200, 10),
    )  # fmt: skip


def cnn() -> nn.Module:
    """Two 5x5 'same' convolutions with pooling, then 512 units: 1,663,370 parameters.

    ReLU comes after pooling: the result is the same in either order, and there are a quarter as many numbers.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def pixels(x: Tensor) -> Tensor:
    return as_float(x).flatten(1)


def image(x: Tensor) -> Tensor:
    return as_float(x).unsqueeze(1)


MNIST_2NN = Task("mnist-2nn", two_nn, prepare=pixels)
MNIST_CNN = Task("mnist-cnn", cnn, prepare=image, eval_batch=200)  # more do not fit in a core's cache
