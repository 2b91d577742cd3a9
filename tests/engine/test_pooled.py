"""A convolution with its pooling and ReLU as one operator gives what the three give one after another."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedavg import Examples, Task, native
from fedavg.engine.convolution import FastConvolutions
from fedavg.engine.model import Model
from fedavg.engine.pooled import SOURCE, fuse_pooling, is_pooled
from fedavg.engine.tape import record
from fedavg.engine.trainer import Trainer
from toys import epoch

needs_compiler = pytest.mark.skipif(not native.library(SOURCE), reason="needs a C compiler and wide vectors")
LANES = 16  # a multiple of what any machine has
NOWHERE = 255
ops = torch.ops.fedavg
#: No padding of images; windows of 2 x 2, side by side.
HALVED = (0, 2, 2)


@dataclass(frozen=True)
class Pooling:
    window: int
    stride: int
    ceil_mode: bool = False

    def __call__(self, planes: Tensor) -> Tensor:
        return F.max_pool2d(planes, self.window, self.stride, ceil_mode=self.ceil_mode)

    def options(self, planes: Tensor) -> tuple[int, int, list[int]]:
        """As the operators take them."""
        return self.window, self.stride, list(self(planes).shape[2:])

    def places(self, origin: Tensor, planes: Tensor) -> Tensor:
        """Pixels of windows as pixels of planes, counted row by row: what PyTorch calls indices."""
        top, left = (torch.arange(side) * self.stride for side in origin.shape[2:])
        origin = origin.long()
        row, column = top[:, None] + origin // self.window, left + origin % self.window
        return row * planes.shape[3] + column


def spread(dy: Tensor, origin: Tensor, how: Pooling, planes: Tensor) -> Tensor:
    """The gradient of what was pooled; each place on its own, in the order of the windows."""
    places = how.places(torch.where(origin == NOWHERE, 0, origin), planes).flatten(2)
    values = torch.where(origin == NOWHERE, 0, dy).to(planes.dtype).flatten(2)
    return torch.zeros_like(planes).flatten(2).scatter_add_(2, places, values).view(planes.shape)


poolings = st.builds(Pooling, st.integers(1, 4), st.integers(1, 4), st.booleans())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    batch=st.sampled_from([1, 2, 13, 65]),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 3),
    height=st.integers(9, 14),
    width=st.integers(9, 14),
    bias=st.booleans(),
    how=poolings,
    relu=st.booleans(),
    back=st.booleans(),
)
def test_by_fourier_transforms_it_is_the_same_bit_for_bit(
    batch: int, inputs: int, outputs: int, height: int, width: int, bias: bool, how: Pooling, relu: bool, back: bool
) -> None:
    x = drawn(batch, inputs * LANES, height, width).to(memory_format=torch.channels_last)
    w = drawn(outputs * LANES, inputs * LANES, 5, 5)
    b = drawn(outputs * LANES) if bias else None
    planes = ops.convolution(x, w, b, 2)
    options = (2, *how.options(planes))
    y, origin = ops.pooled_convolution(x, w, b, *options, relu)
    pooled, indices = F.max_pool2d(planes, how.window, how.stride, ceil_mode=how.ceil_mode, return_indices=True)
    assert torch.equal(y, how(F.relu(planes) if relu else planes))
    assert torch.equal(origin == NOWHERE, (pooled <= 0) & relu)
    kept = origin != NOWHERE
    assert torch.equal(how.places(origin, planes)[kept], indices[kept])

    dy = drawn(*y.shape, seed=1)
    got = ops.pooled_convolution_backward(dy, origin, x, w, *options, back)
    dense = spread(dy, origin, how, planes)
    assert all(map(torch.equal, got, ops.convolution_backward(dense, x, w, 2, back)))


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 5),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    height=st.integers(7, 30),
    width=st.integers(7, 30),
    side=st.integers(1, 6),
    padding=st.integers(0, 6),
    bias=st.booleans(),
    how=poolings,
    relu=st.booleans(),
)
def test_of_few_channels_it_is_the_convolution(
    batch: int,
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    side: int,
    padding: int,
    bias: bool,
    how: Pooling,
    relu: bool,
) -> None:
    x, w = drawn(batch, inputs, height, width), drawn(outputs * LANES, inputs, side, side)
    b = drawn(outputs * LANES) if bias else None
    exact = F.conv2d(x.double(), w.double(), None if b is None else b.double(), padding=padding)
    assume(min(exact.shape[2:]) >= how.window)
    options = (padding, *how.options(exact))
    y, origin = ops.pooled_convolution(x, w, b, *options, relu)
    pooled, scale = how(exact), exact.abs().max()
    assert (y - how(F.relu(exact) if relu else exact)).abs().max() <= 1e-6 * scale
    assert (pooled[origin == NOWHERE] <= 1e-6 * scale).all()
    assert relu or not (origin == NOWHERE).any()
    kept = origin != NOWHERE  # where two are nearly the same, rounding may choose the other
    chosen = exact.flatten(2).gather(2, how.places(torch.where(kept, origin, 0), exact).flatten(2)).view(y.shape)
    assert ((chosen - pooled)[kept].abs() <= 2e-6 * scale).all()

    dy = drawn(*y.shape, seed=1)
    _, dw, db = ops.pooled_convolution_backward(dy, origin, x, w, *options, False)
    dense = spread(dy, origin, how, exact)
    wanted = torch.nn.grad.conv2d_weight(x.double(), w.shape, dense, padding=padding)  # type: ignore[no-untyped-call]
    assert (dw - wanted).norm() <= 2e-6 * wanted.norm() + 1e-9
    assert (db - dense.sum((0, 2, 3))).norm() <= 1e-5 * dy.norm()


@needs_compiler
def test_by_hand() -> None:
    x = torch.tensor([[1.0, 2, 0, 0, 9], [3, 4, 0, -5, 9], [-1, -1, 2, 2, 9], [-1, -1, 2, 2, 9], [9, 9, 9, 9, 9]])
    w = torch.zeros(LANES, 1, 1, 1)
    w[3] = 2.0
    y, origin = ops.pooled_convolution(x.view(1, 1, 5, 5), w, None, *HALVED, [2, 2], True)
    assert y[0, 3].tolist() == [[8, 0], [0, 4]]  # the fifth row and column are left out
    assert origin[0, 3].tolist() == [[3, NOWHERE], [NOWHERE, 0]]  # the first of four that are the same
    _, dw, db = ops.pooled_convolution_backward(
        torch.ones(y.shape), origin, x.view(1, 1, 5, 5), w, *HALVED, [2, 2], False
    )
    assert (dw[3].item(), db[3].item()) == (4 + 2, 2)


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_not_hidden(value: float) -> None:
    x, w = torch.zeros(1, 1, 6, 6), torch.ones(LANES, 1, 1, 1)
    x[0, 0, 2, 3] = value
    y, _ = ops.pooled_convolution(x, w, None, *HALVED, [3, 3], True)
    assert torch.equal(y.isfinite(), torch.arange(9).view(1, 1, 3, 3).expand(1, LANES, 3, 3) != 4)


# ---- which layers of a module are fused ----


Use = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Each convolution, and what is made of its planes; then a linear layer."""

    def __init__(self, layers: list[tuple[nn.Module, Use]], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(layer for layer, _ in layers)
        self.uses = [use for _, use in layers]
        self.out = nn.Linear(self.features(torch.zeros(1, *shape)).shape[1], 3)

    def features(self, x: Tensor) -> Tensor:
        for layer, use in zip(self.convolutions, self.uses, strict=True):
            x = use(layer(x))
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.features(x))
        return out


def one_layer(use: Use) -> nn.Module:
    return Net([(nn.Conv2d(1, LANES, 3), use)], (1, 13, 13))


def indices_used(x: Tensor) -> Tensor:
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    return pooled + 0.01 * places


def half(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def images(side: int) -> tuple[Tensor, Tensor]:
    x = torch.empty(6, 1, side, side, memory_format=torch.channels_last)
    return x.copy_(drawn(6, 1, side, side)), torch.arange(6) % 3


def fused(build: Callable[[], nn.Module], side: int) -> int:
    """How many layers of the module are; it trains as on the plain path."""
    task = Task("net", build)
    x, y = images(side)
    weights = {}
    for engine in ("graph", "plain"):
        trainer = Trainer(task, seed=0)
        trainer.choose_engine(engine, Examples(x[:4], y[:4]))
        start = trainer.weights.clone()
        for _ in range(3):
            epoch(trainer, Examples(x, y), 4, 0.05)
        weights[engine] = trainer.weights - start
    assert (weights["graph"] - weights["plain"]).norm() <= 1e-4 * weights["plain"].norm()
    tape = fuse_pooling(record(Model(task, 0), Examples(x, y), FastConvolutions()))
    return sum(map(is_pooled, tape.ops))


@needs_compiler
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: F.relu(half(x)), lambda x: F.relu(half(x))),
        (lambda x: half(F.relu(x)), lambda x: F.max_pool2d(F.relu(x), (2, 2), stride=2)),
        (half, lambda x: half(x).tanh()),
        (lambda x: F.relu(half(F.relu(x))), lambda x: half(x).exp()),
        (lambda x: F.relu(F.max_pool2d(x, 2, ceil_mode=True)), lambda x: F.max_pool2d(F.relu(x), 3, stride=2)),
    ],
)
def test_layers_are_fused_in_any_order(first: Use, second: Use) -> None:
    def build() -> nn.Module:
        layers = [nn.Conv2d(1, LANES, 4, padding=3), nn.Conv2d(LANES, 2 * LANES, 5, padding=2)]
        return Net([(layers[0], first), (layers[1], second)], (1, 21, 21))

    assert fused(build, side=21) == 2


@needs_compiler
@pytest.mark.parametrize(
    "use",
    [
        lambda x: F.max_pool2d(x, 2, padding=1),
        lambda x: F.max_pool2d(x, 2, dilation=2),
        lambda x: F.max_pool2d(x, (2, 3)),
        lambda x: F.max_pool2d(x, 2, stride=(1, 2)),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.max_pool2d(F.relu_(x), 2),
        lambda x: F.max_pool2d(x, 2) + x.mean(),
        lambda x: F.max_pool2d(x, 2) + F.max_pool2d(x.flip(3), 2),
        indices_used,
    ],
)
def test_others_are_left_as_they_are(use: Use) -> None:
    assert fused(lambda: one_layer(use), side=13) == 0


@needs_compiler
def test_relu_stays_where_the_pooled_planes_are_read_as_well() -> None:
    def both(x: Tensor) -> Tensor:
        pooled = half(x)
        return F.relu(pooled) + pooled.square()

    assert fused(lambda: one_layer(both), side=13) == 1


@needs_compiler
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(1, LANES, 3, stride=2), (1, 13, 13)),
        (nn.Conv2d(1, LANES, 3, dilation=2), (1, 13, 13)),
        (nn.Conv2d(1, LANES, (3, 5)), (1, 13, 13)),
        (nn.Conv2d(1, LANES, 3, padding=(0, 1)), (1, 13, 13)),
        (nn.Conv2d(2, LANES, 3, groups=2), (2, 13, 13)),
        (nn.Conv2d(1, 10, 3), (1, 13, 13)),
        (nn.Conv2d(5, LANES, 3), (5, 13, 13)),
    ],
)
def test_other_convolutions_are_left_to_pytorch(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = Model(Task("net", lambda: Net([(layer, half)], shape)), 0)
    x, y = drawn(4, *shape), torch.arange(4) % 3
    assert not any(map(is_pooled, fuse_pooling(record(model, Examples(x, y))).ops))


@needs_compiler
def test_a_layer_that_is_asked_for_the_gradient_of_its_images_is_left_to_pytorch() -> None:
    def build() -> nn.Module:
        return Net([(nn.Conv2d(1, 2, 3), torch.tanh), (nn.Conv2d(2, LANES, 3), half)], (1, 13, 13))

    assert fused(build, side=13) == 0


class Double(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        return F.conv2d(x.double(), self.weight.double(), self.bias.double())


@needs_compiler
def test_other_types_are_left_to_pytorch() -> None:
    def build() -> nn.Module:
        return Net([(Double(1, LANES, 3), lambda x: half(x).float())], (1, 13, 13))

    assert fused(build, side=13) == 0


@needs_compiler
def test_other_layouts_are_left_to_pytorch() -> None:
    """What comes after has been recorded for images whose channels are not last in memory."""
    layer = nn.Conv2d(1, LANES, 3)
    x, y = images(13)
    model = Model(Task("net", lambda: Net([(layer, half)], (1, 13, 13))), 0)
    counts = [sum(map(is_pooled, fuse_pooling(record(model, Examples(z, y))).ops)) for z in (x, drawn(6, 1, 13, 13))]
    assert counts == [1, 0]


@needs_compiler
def test_the_engine_is_named_after_it() -> None:
    """In a step that is not native as a whole: softplus has no instruction."""
    task = Task("net", lambda: nn.Sequential(one_layer(half), nn.Softplus()))
    trainer = Trainer(task, seed=0)
    trainer.choose_engine("auto", Examples(*images(13)))
    assert trainer.engine.name == native.marked("graph with native convolution")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_pytorch_does_it() -> None:
    assert fused(lambda: one_layer(half), side=13) == 0
