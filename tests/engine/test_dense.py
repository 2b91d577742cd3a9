"""A large layer's backward and step as one operator give what autograd and SGD give one after the other."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedavg import Examples, Task, native
from fedavg.engine.dense import SOURCE, fuse_steps, is_fused
from fedavg.engine.model import Model
from fedavg.engine.tape import record
from fedavg.engine.trainer import Trainer
from toys import epoch

needs_compiler = pytest.mark.skipif(not native.library(SOURCE), reason="needs a C compiler and wide vectors")
ops = torch.ops.fedavg


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70),  # PyTorch does more than 32 forward, and more than 64 backward
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 9),
    bias=st.booleans(),
    turned=st.booleans(),
)
def test_it_is_the_layer_its_gradient_and_its_step(
    rows: int, inputs: int, outputs: int, bias: bool, turned: bool
) -> None:
    x = drawn(16 * inputs, rows).t() if turned else drawn(rows, 16 * inputs)
    w, b = drawn(8 * outputs, 16 * inputs), drawn(8 * outputs) if bias else None
    y = ops.dense(x, w, b)
    exact = F.linear(x.double(), w.double(), None if b is None else b.double())
    assert (y - exact).norm() <= 1e-6 * exact.norm()

    dy, before = drawn(rows, 8 * outputs, seed=1), w.clone()
    dx = ops.dense_step(dy, x, w, 0.25)
    through, after = dy.double() @ before.double(), before.double() - 0.25 * dy.double().t() @ x.double()
    assert (dx - through).norm() <= 1e-6 * through.norm()
    assert (w - after).norm() <= 1e-6 * after.norm()


@needs_compiler
def test_by_hand() -> None:
    x, w = torch.zeros(1, 16), torch.zeros(8, 16)
    x[0, 3], w[2, 3], w[2, 5] = 2.0, 10.0, 7.0
    assert ops.dense(x, w, torch.ones(8)).tolist() == [[1, 1, 21, 1, 1, 1, 1, 1]]
    dy = torch.zeros(1, 8)
    dy[0, 2] = 3.0
    dx = ops.dense_step(dy, x, w, 0.5)
    assert (dx[0, 3].item(), dx[0, 5].item()) == (30, 21)  # from the weights before the step
    assert (w[2, 3].item(), w[2, 5].item()) == (10 - 0.5 * 3 * 2, 7)


# ---- which layers of a module are fused ----


class Net(nn.Module):
    """A small layer, a large one and a small one; `use` says how the large one is used."""

    def __init__(self, use: Callable[[nn.Linear, Tensor], Tensor], inputs: int = 512, outputs: int = 512) -> None:
        super().__init__()
        self.first, self.large = nn.Linear(8, inputs), nn.Linear(inputs, outputs)
        self.last, self._use = nn.Linear(outputs, 3), use

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self._use(self.large, torch.tanh(self.first(x)))))
        return out


def points(rows: int) -> tuple[Tensor, Tensor]:
    return drawn(rows, 8), torch.arange(rows) % 3


def fused(build: Callable[[], nn.Module]) -> int:
    """How many layers of the module are; it trains as on the plain path, in batches of few and of many rows."""
    task = Task("net", build)
    x, y = points(75)
    for batch in (4, 40, 70):
        weights = {}
        for engine in ("graph", "plain"):
            trainer = Trainer(task, seed=0)
            trainer.choose_engine(engine, Examples(x[:4], y[:4]))
            start = trainer.weights.clone()
            epoch(trainer, Examples(x, y), batch, 0.1)
            weights[engine] = trainer.weights - start
        assert (weights["graph"] - weights["plain"]).norm() <= 1e-4 * weights["plain"].norm()
    return sum(map(is_fused, fuse_steps(record(Model(task, 0), Examples(x, y))).ops))


@needs_compiler
@pytest.mark.parametrize(
    "use",
    [
        lambda large, x: large(x),
        lambda large, x: F.linear(x, large.weight) + large.bias,
        lambda large, x: large(x.unsqueeze(1)).squeeze(1),
    ],
)
def test_a_large_layer_is_fused(use: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    assert fused(lambda: Net(use)) == 1


@needs_compiler
@pytest.mark.parametrize(
    "use",
    [
        lambda large, x: large(large(x)),
        lambda large, x: large(x) + large.weight.square().sum(),
        lambda large, x: x @ large.weight,
        lambda large, x: torch.addmm(large.bias, x, large.weight.t(), alpha=2),
        lambda large, x: large(x.detach()),
        lambda large, x: large(x.clone().mul_(2)),
    ],
)
def test_a_layer_that_is_used_in_another_way_is_left_as_it_is(use: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    assert fused(lambda: Net(use)) == 0


@needs_compiler
@pytest.mark.parametrize(("inputs", "outputs"), [(511, 520), (520, 515), (512, 504)])
def test_other_sizes_are_left_to_pytorch(inputs: int, outputs: int) -> None:
    """Not a multiple of the vectors' width, or small enough for the cache."""
    assert fused(lambda: Net(lambda large, x: large(x), inputs, outputs)) == 0


@needs_compiler
def test_the_engine_is_named_after_it() -> None:
    trainer = Trainer(Task("net", lambda: Net(lambda large, x: large(x))), seed=0)
    trainer.choose_engine("auto", Examples(*points(4)))
    assert trainer.engine.name == native.marked("graph with native steps")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_pytorch_does_it() -> None:
    assert fused(lambda: Net(lambda large, x: large(x))) == 0
