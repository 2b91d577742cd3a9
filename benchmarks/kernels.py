"""The paper's two convolutional models with the engine's kernels in C, beside PyTorch's.

Each repetition runs both, in turn, on one thread; times are medians, and only their ratios are meaningful: of the
second convolution alone, forward and backward, of MNIST's first one with its pooling and of its large layer with its
step of SGD, and of a whole training step and an evaluation. Needs a C compiler.

    python benchmarks/kernels.py [--repeats 15] [--out docs/results/kernels.json]
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg import native, trees
from fedavg.engine.convolution import FastConvolutions
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.trainer import Trainer
from fedavg.tasks import TASKS
from fedavg.types import Examples
from race import Run, race

#: Channels before and after, and the side of the planes, of each model's second convolution.
LAYERS = {"mnist-cnn": (32, 64, 14), "cifar-cnn": (64, 64, 12)}
#: The shape of its raw images.
RAW = {"mnist-cnn": (28, 28), "cifar-cnn": (3, 32, 32)}
aten = torch.ops.aten


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for model, batch, what, pytorchs, ours in contests():
        times = race(("pytorch", pytorchs), ("ours", ours), options.repeats)
        rows.append({"model": model, "batch": batch, "what": what} | times)
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


#: What is timed, and the two ways to do it: PyTorch's and ours.
Contest = tuple[str, Run, Run]


def contests() -> Iterator[tuple[str, int, str, Run, Run]]:
    for model in LAYERS:
        for batch in (10, 50, 600):
            for contest in (*layer(model, batch), *of_mnist(model, batch), step(model, batch)):
                yield model, batch, *contest
        yield model, 200, *evaluation(model)


def layer(model: str, batch: int) -> Iterator[Contest]:
    """The second convolution alone."""
    inputs, outputs, side = LAYERS[model]
    x, dy = images(batch, inputs, side), images(batch, outputs, side)
    w, b = torch.randn(outputs, inputs, 5, 5), torch.randn(outputs)
    shape = ([1, 1], [2, 2], [1, 1], False, [0, 0], 1)

    def forward() -> Tensor:
        result: Tensor = aten.convolution(x, w, b, *shape)
        return result

    def backward() -> object:
        return aten.convolution_backward(dy, x, w, [outputs], *shape, [True, True, True])

    yield "convolution", forward, under(FastConvolutions(), forward)
    yield "gradients of the convolution", backward, under(FastConvolutions(), backward)


def of_mnist(model: str, batch: int) -> Iterator[Contest]:
    if model == "mnist-cnn":
        yield from first_layer(batch)
        yield from large_layer(batch)


def large_layer(batch: int) -> Iterator[Contest]:
    """The fully connected layer of 1.6 million weights, and its gradient with the step."""
    x, dy, w, b = torch.randn(batch, 3136), torch.randn(batch, 512), torch.randn(512, 3136), torch.randn(512)

    def backward() -> object:
        dx = aten.mm(dy, w)
        w.addmm_(dy.t(), x, alpha=-1e-6)
        return dx

    yield "large layer", lambda: aten.addmm(b, x, w.t()), lambda: torch.ops.fedavg.dense(x, w, b)
    yield "gradient and step of it", backward, lambda: torch.ops.fedavg.dense_step(dy, x, w, 1e-6)


def first_layer(batch: int) -> Iterator[Contest]:
    """The first convolution with its pooling and ReLU, and the gradients of its kernels."""
    x, dy = images(batch, 1, 28), images(batch, 32, 14)
    w, b = torch.randn(32, 1, 5, 5), torch.randn(32)
    shape, halves = ([1, 1], [2, 2], [1, 1], False, [0, 0], 1), ([2, 2], [2, 2], [0, 0], [1, 1], False)
    planes = aten.convolution(x, w, b, *shape)
    places = aten.max_pool2d_with_indices(planes, *halves)[1]
    options = (2, 2, 2, [14, 14])
    y, origin = torch.ops.fedavg.pooled_convolution(x, w, b, *options, True)

    def forward() -> object:
        return aten.relu(aten.max_pool2d_with_indices(aten.convolution(x, w, b, *shape), *halves)[0])

    def backward() -> object:
        through = aten.threshold_backward(dy, y, 0)
        dense = aten.max_pool2d_with_indices_backward(through, planes, *halves, places)
        return aten.convolution_backward(dense, x, w, [32], *shape, [False, True, True])

    yield "first layer", forward, lambda: torch.ops.fedavg.pooled_convolution(x, w, b, *options, True)
    gradients = torch.ops.fedavg.pooled_convolution_backward
    yield "gradients of the first layer", backward, lambda: gradients(dy, origin, x, w, *options, False)


def step(model: str, batch: int) -> Contest:
    examples = Examples(torch.randint(0, 256, (batch, *RAW[model]), dtype=torch.uint8), torch.randint(0, 10, (batch,)))
    slow, fast = trainers(model, examples)
    return "training step", lambda: one_step(slow, examples), lambda: one_step(fast, examples)


def one_step(trainer: Trainer, examples: Examples) -> None:
    steps = trainer.steps(0.0)
    for piece in trainer.pieces(examples, len(examples), np.random.default_rng(0)):
        trainer.epoch_for(piece, steps)(piece, steps)


def evaluation(model: str) -> Contest:
    test = Examples(torch.randint(0, 256, (1000, *RAW[model]), dtype=torch.uint8), torch.randint(0, 10, (1000,)))
    slow, fast = trainers(model, trees.take(test, slice(10)))
    return "evaluation", lambda: slow.evaluate(test), lambda: fast.evaluate(test)


def trainers(model: str, examples: Examples) -> tuple[Trainer, Trainer]:
    """A trainer with PyTorch's convolutions, and one with ours."""
    slow, fast = Trainer(TASKS[model], 0), Trainer(TASKS[model], 0)
    with no_compiler():
        slow.choose_engine("graph", examples)
        slow._kernels = nullcontext()
    fast.choose_engine("graph", examples)
    assert (slow.engine.name, "native convolution" in fast.engine.name) == ("graph", True), "needs a C compiler"
    return slow, fast


@contextmanager
def no_compiler() -> Iterator[None]:
    built = native.library
    native.library = lambda source: None  # type: ignore[assignment]
    try:
        yield
    finally:
        native.library = built


def images(batch: int, channels: int, side: int) -> Tensor:
    return torch.randn(batch, channels, side, side).to(memory_format=torch.channels_last)


def under(mode: AbstractContextManager[Any], run: Run) -> Run:
    def inside() -> object:
        with mode:
            return run()

    return inside


if __name__ == "__main__":
    main()
