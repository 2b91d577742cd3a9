import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv2d

from fedavg import native, trees
from fedavg.engine.convolution import SOURCE, FastConvolutions
from fedavg.engine.trainer import Trainer
from fedavg.tasks import TASKS
from fedavg.types import Examples
from toys import epoch

needs_compiler = pytest.mark.skipif(not native.library(SOURCE), reason="needs a C compiler and wide vectors")
LANES = 16  # a multiple of what any machine has


def gradients(x: Tensor, w: Tensor, bias: Tensor | None, padding: int) -> list[Tensor]:
    """The output of a convolution and the gradients of a fixed function of it."""
    leaves = [leaf.detach().requires_grad_() for leaf in (x, w, bias) if leaf is not None]
    y = conv2d(*leaves, padding=padding)  # type: ignore[call-overload]
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), leaves)]


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    batch=st.sampled_from([1, 2, 3, 4, 11, 12, 13, 25, 64, 65]),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    height=st.integers(9, 16),
    width=st.integers(9, 16),
    side=st.integers(5, 9),
    padding=st.integers(0, 5),
    bias=st.booleans(),
)
def test_it_is_the_convolution(
    batch: int, inputs: int, outputs: int, height: int, width: int, side: int, padding: int, bias: bool
) -> None:
    padding = min(padding, side - 1, 16 - max(height, width))
    generator = torch.Generator().manual_seed(batch * height + width)
    x = torch.randn(batch, inputs * LANES, height, width, generator=generator)
    w = torch.randn(outputs * LANES, inputs * LANES, side, side, generator=generator)
    b = torch.randn(outputs * LANES, generator=generator) if bias else None
    with FastConvolutions() as kernels:
        fast = gradients(x, w, b, padding)
    area = (height + 2 * padding - side + 1) * (width + 2 * padding - side + 1)
    assert kernels.used == (area * side**2 >= 2080)
    exact = gradients(x.double(), w.double(), None if b is None else b.double(), padding)
    for got, expected in zip(fast, exact, strict=True):
        assert got.shape == expected.shape
        assert (got - expected).norm() <= 3e-6 * expected.norm()


@needs_compiler
def test_by_hand_a_kernel_of_one_tap_shifts_the_image() -> None:
    x = torch.arange(3 * LANES * 14 * 14, dtype=torch.float32).view(3, LANES, 14, 14) % 7
    w = torch.zeros(LANES, LANES, 5, 5)
    w[5, 2, 1, 4] = 2.0  # output channel 5 is twice input channel 2, from one row up and two columns to the right
    with FastConvolutions() as kernels:
        y = conv2d(x, w, padding=2)
    assert kernels.used
    torch.testing.assert_close(y[:, 5, 1:, :-2], 2 * x[:, 2, :-1, 2:], rtol=1e-5, atol=1e-5)
    assert y[:, 5, 0].abs().max() < 1e-5
    assert y[:, 5, :, -2:].abs().max() < 1e-5


@needs_compiler
def test_an_image_does_not_depend_on_the_others_of_its_batch() -> None:
    x, w = torch.randn(70, LANES, 14, 14), torch.randn(LANES, LANES, 5, 5)
    with FastConvolutions():
        assert torch.equal(conv2d(x, w, padding=2)[:3], conv2d(x[:3], w, padding=2))


@needs_compiler
def test_the_first_layer_needs_no_gradient_of_its_images() -> None:
    layer = nn.Conv2d(LANES, LANES, 5, padding=2)
    x = torch.randn(4, LANES, 12, 12)
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    with FastConvolutions() as kernels:
        got = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    assert kernels.used
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((4, 16, 14, 14), (16, 16, 5, 5), {"padding": 2, "stride": 2}),
        ((4, 16, 14, 14), (16, 16, 5, 5), {"padding": 2, "dilation": 2}),
        ((4, 32, 14, 14), (32, 16, 5, 5), {"padding": 2, "groups": 2}),
        ((4, 16, 14, 14), (16, 16, 5, 5), {"padding": (2, 1)}),
        ((4, 16, 14, 14), (16, 16, 5, 3), {"padding": 1}),
        ((4, 16, 14, 14), (16, 16, 3, 3), {"padding": 3}),
        ((4, 16, 24, 24), (16, 16, 5, 5), {"padding": 2}),
        ((4, 1, 14, 14), (16, 1, 5, 5), {"padding": 2}),
        ((4, 16, 14, 14), (10, 16, 5, 5), {"padding": 2}),
        ((4, 16, 4, 4), (16, 16, 3, 3), {"padding": 1}),
    ],
)
def test_what_does_not_fit_is_left_to_pytorch(x: tuple[int, ...], w: tuple[int, ...], options: dict[str, int]) -> None:
    images, kernels = torch.randn(x), torch.randn(w)
    with FastConvolutions() as fast:
        got = conv2d(images, kernels, **options)  # type: ignore[arg-type]
    assert not fast.used
    assert torch.equal(got, conv2d(images, kernels, **options))  # type: ignore[arg-type]


def test_other_types_are_left_to_pytorch() -> None:
    x, w = torch.randn(4, 16, 14, 14).double(), torch.randn(16, 16, 5, 5).double()
    with FastConvolutions() as fast:
        assert torch.equal(conv2d(x, w, padding=2), conv2d(x, w, padding=2))
    assert not fast.used


def cnn_batch(n: int) -> Examples:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 28, 28, generator=generator) * 255
    return Examples(x.to(torch.uint8), torch.randint(0, 10, (n,), generator=generator))


def trained(engine: str, batch: Examples) -> Trainer:
    trainer = Trainer(TASKS["mnist-cnn"], seed=0)
    trainer.choose_engine(engine, trees.take(batch, slice(8)))
    for _ in range(3):
        epoch(trainer, batch, 8, 0.1)
    return trainer


@needs_compiler
def test_the_papers_cnn_trains_as_on_the_plain_path() -> None:
    batch = cnn_batch(27)  # three of 8 and one of 3
    start = Trainer(TASKS["mnist-cnn"], seed=0).weights.clone()
    fast, plain = trained("graph", batch), trained("plain", batch)
    assert (fast.engine.name, plain.engine.name) == (
        native.marked("graph with native convolution and dense layers"),
        "plain",
    )
    assert (fast.weights - plain.weights).norm() <= 1e-4 * (plain.weights - start).norm()


@needs_compiler
def test_evaluation_uses_it_and_agrees() -> None:
    batch = cnn_batch(210)
    fast, plain = trained("graph", batch), trained("plain", batch)
    plain.load(fast.weights)
    got, expected = fast.evaluate(batch), plain.evaluate(batch)
    assert got["accuracy"].tolist() == expected["accuracy"].tolist()
    assert got["loss"].tolist() == pytest.approx(expected["loss"].tolist(), rel=1e-5)
    assert got["loss"].tolist() != expected["loss"].tolist()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_pytorch_does_it() -> None:
    assert trained("graph", cnn_batch(8)).engine.name == "graph"
