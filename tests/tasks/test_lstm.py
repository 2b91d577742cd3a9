"""The fast peephole LSTM against a plain one, in every way that it is run."""

import math
import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from fedavg import native
from fedavg.tasks import lstm, lstm_native
from fedavg.tasks.lstm import PeepholeLSTM


def reference(layer: PeepholeLSTM, x: Tensor, starts: Tensor | None = None) -> Tensor:
    """The equations of the cell, one step at a time, by plain autograd; from zero where a sequence starts."""
    w_ci, w_cf, w_co = layer.peephole
    h = c = x.new_zeros(len(x), layer.units)
    outputs = []
    for t, x_t in enumerate(x.unbind(1)):
        if starts is not None:
            h, c = (torch.where(starts[:, t, None], 0, state) for state in (h, c))
        z_i, z_f, z_g, z_o = (x_t @ layer.weight_ih + h @ layer.weight_hh.t() + layer.bias).chunk(4, 1)
        i, f = torch.sigmoid(z_i + w_ci * c), torch.sigmoid(z_f + w_cf * c)
        c = f * c + i * torch.tanh(z_g)
        h = torch.sigmoid(z_o + w_co * c) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, 1)


def layer_and_input(
    batch: int = 3, steps: int = 7, inputs: int = 4, units: int = 5, dtype: torch.dtype = torch.float32
) -> tuple[PeepholeLSTM, Tensor]:
    torch.manual_seed(0)
    layer = PeepholeLSTM(inputs, units).to(dtype)
    nn.init.normal_(layer.bias)
    return layer, torch.randn(batch, steps, inputs, dtype=dtype, requires_grad=True)


def value_and_gradients(layer: PeepholeLSTM, x: Tensor, y: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]


def test_parameters_are_those_of_a_single_bias_peephole_cell() -> None:
    assert sum(p.numel() for p in PeepholeLSTM(8, 256).parameters()) == 4 * 256 * (8 + 256) + 4 * 256 + 3 * 256


def test_initial_weights_follow_glorot_and_the_forget_gate_starts_open() -> None:
    layer = PeepholeLSTM(8, 256)
    limit = math.sqrt(6 / (8 + 256 + 4 * 256))
    for weight in (layer.weight_ih, layer.weight_hh):
        assert 0.99 * limit < weight.abs().max() <= limit
    assert layer.bias.unflatten(0, (4, 256)).unique(dim=1).flatten().tolist() == [0, 1, 0, 0]


def test_two_steps_by_hand() -> None:
    layer = PeepholeLSTM(1, 1)
    with torch.no_grad():
        layer.weight_ih.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        layer.weight_hh.copy_(torch.tensor([[0.5], [0.25], [-0.5], [-0.25]]))
        layer.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        layer.peephole.copy_(torch.tensor([[0.6], [0.7], [0.8]]))

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z))

    c1 = sigmoid(0.5 + 0.1) * math.tanh(1.5 + 0.3)
    h1 = sigmoid(2.0 + 0.4 + 0.8 * c1) * math.tanh(c1)
    i2, f2 = sigmoid(-1 + 0.1 + 0.5 * h1 + 0.6 * c1), sigmoid(-2 + 0.2 + 0.25 * h1 + 0.7 * c1)
    c2 = f2 * c1 + i2 * math.tanh(-3 + 0.3 - 0.5 * h1)
    h2 = sigmoid(-4 + 0.4 - 0.25 * h1 + 0.8 * c2) * math.tanh(c2)
    assert layer(torch.tensor([[[0.5], [-1.0]]])).flatten().tolist() == pytest.approx([h1, h2], rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "steps", "inputs", "units"),
    [(3, 7, 4, 5), (10, 20, 8, 64), (1, 2, 1, 1), (4, 1, 3, 32), (7, 3, 2, 32), (13, 3, 2, 96), (30, 2, 1, 32)],
)
def test_equals_the_reference_in_value_and_gradient(batch: int, steps: int, inputs: int, units: int) -> None:
    layer, x = layer_and_input(batch, steps, inputs, units)
    torch.testing.assert_close(
        value_and_gradients(layer, x, layer(x)), value_and_gradients(layer, x, reference(layer, x)),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def some_starts(batch: int, steps: int) -> Tensor:
    """In any places, so that a row has one, two or more sequences."""
    return torch.rand(batch, steps, generator=torch.Generator().manual_seed(1)) < 0.3


@pytest.mark.parametrize(("batch", "steps", "units"), [(3, 7, 5), (10, 20, 64), (1, 2, 32), (4, 1, 32), (13, 9, 96)])
def test_a_row_of_several_sequences_equals_the_reference(batch: int, steps: int, units: int) -> None:
    layer, x = layer_and_input(batch, steps, units=units)
    starts = some_starts(batch, steps)
    torch.testing.assert_close(
        value_and_gradients(layer, x, layer(x, starts)), value_and_gradients(layer, x, reference(layer, x, starts)),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("units", [5, 64])
def test_a_sequence_does_not_see_the_one_before_it_in_its_row(units: int) -> None:
    layer, x = layer_and_input(batch=2, steps=9, units=units)
    starts = torch.zeros(2, 9, dtype=torch.bool)
    starts[0, 4] = True
    packed = layer(x, starts)
    torch.testing.assert_close(packed[:1, 4:], layer(x[:1, 4:]))
    torch.testing.assert_close(packed[1:], layer(x[1:]))
    assert not torch.allclose(packed[:1, 4:], layer(x)[:1, 4:])


def test_equals_the_reference_closely_in_double_precision() -> None:
    layer, x = layer_and_input(dtype=torch.float64)
    fast, plain = value_and_gradients(layer, x, layer(x)), value_and_gradients(layer, x, reference(layer, x))
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)


def test_gradient_is_that_of_finite_differences() -> None:
    layer, x = layer_and_input(batch=2, steps=3, inputs=2, units=3, dtype=torch.float64)
    names, weights = zip(*layer.named_parameters(), strict=True)

    starts = torch.tensor([[False, True, False], [False, False, True]])

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, weights, strict=True)), (x, starts))

    assert torch.autograd.gradcheck(run, (x, *weights))


def test_layers_stack_without_a_copy() -> None:
    below, x = layer_and_input()
    y = below(x)
    assert y.transpose(0, 1).is_contiguous()
    assert PeepholeLSTM(5, 6)(y).shape == (3, 7, 6)


def test_result_does_not_depend_on_whether_gradients_are_asked_for() -> None:
    layer, x = layer_and_input()
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x.detach().requires_grad_()))


def traced_step(layer: PeepholeLSTM, x: Tensor) -> torch.fx.GraphModule:
    """Forward and gradient of all parameters as one flat graph, as the engine takes it."""
    names = [name for name, _ in layer.named_parameters()]

    def step(weights: list[Tensor], x: Tensor) -> list[Tensor]:
        weights = [w.requires_grad_() for w in weights]
        y = functional_call(layer, dict(zip(names, weights, strict=True)), x)
        return [y, *torch.autograd.grad(y.square().sum(), weights)]

    weights = [p.detach().clone() for p in layer.parameters()]
    return make_fx(step, tracing_mode="fake")(weights, x.detach())


def test_traces_to_a_short_graph_with_plain_weight_gradients() -> None:
    layer, x = layer_and_input(steps=50)
    graph = traced_step(layer, x)
    calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert len(calls) < 40
    assert calls.count("fedavg.peephole_scan.default") == calls.count("fedavg.peephole_scan_backward.default") == 1
    assert calls.count("aten.mm.default") == 2  # the gradients of both weight matrices

    y = layer(x)
    weights = list(layer.parameters())
    torch.testing.assert_close(
        graph([w.detach().clone() for w in weights], x.detach()),
        [y, *torch.autograd.grad(y.square().sum(), weights)],
    )


def test_runs_inside_torchscript() -> None:
    unit = torch.jit.CompilationUnit("""
def forward_and_back(z: Tensor, w: Tensor, p: Tensor, k: Tensor):
    h, c, tanh_c, gates = torch.ops.fedavg.peephole_scan(z, w, p, k)
    dz, dp = torch.ops.fedavg.peephole_scan_backward(torch.ones_like(h), w, p, k, c, tanh_c, gates)
    return h, dz, dp
""")
    layer, _ = layer_and_input()
    z = torch.randn(7, 3, 20, requires_grad=True)
    keep = torch.ones(7, 3)
    h = torch.ops.fedavg.peephole_scan(z, layer.weight_hh, layer.peephole, keep)[0]
    dz, dp = torch.autograd.grad(h.sum(), [z, layer.peephole])
    with torch.no_grad():
        for _ in range(3):  # TorchScript runs a call's first, second and later executions by different programs
            got = unit.forward_and_back(z, layer.weight_hh, layer.peephole, keep)
            assert all(torch.equal(a, b) for a, b in zip(got, (h, dz, dp), strict=True))


def train_in_child(layer: PeepholeLSTM, x: Tensor, queue) -> None:  # type: ignore[no-untyped-def]
    queue.put([t.detach().numpy().tobytes() for t in value_and_gradients(layer, x, layer(x))])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_is_the_same_to_the_bit_after_a_fork() -> None:
    layer, x = layer_and_input()
    here = [t.detach().numpy().tobytes() for t in value_and_gradients(layer, x, layer(x))]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=train_in_child, args=(layer, x, queue))
    child.start()
    there = queue.get()
    child.join()
    assert there == here


@pytest.mark.parametrize("batch", [1, 5, 10, 12, 13, 25])
def test_the_native_and_the_torchscript_loop_agree(batch: int) -> None:
    if lstm_native.kernel(64) != "native":
        pytest.skip("needs a C compiler")
    layer, _ = layer_and_input(units=64)
    weights = layer.weight_hh.detach(), layer.peephole.detach(), some_starts(9, batch).logical_not().float()
    z, dh = 3 * torch.randn(9, batch, 256), torch.randn(9, batch, 64)
    loops = lstm._loops_for(z)
    forward = lstm_native.scan(z, *weights)
    torch.testing.assert_close(forward, loops.scan(z, *weights), rtol=1e-5, atol=1e-6)
    back = lstm_native.scan_backward(dh, *weights, *forward[1:])
    torch.testing.assert_close(back, loops.scan_backward(dh, *weights, *forward[1:]), rtol=1e-5, atol=1e-5)


def test_a_row_of_a_batch_does_not_depend_on_the_others() -> None:
    layer, x = layer_and_input(batch=25, units=64)
    if lstm_native.kernel(64) == "native":
        assert torch.equal(layer(x)[:3], layer(x[:3]))
    torch.testing.assert_close(layer(x)[:3], layer(x[:3]))


@pytest.mark.parametrize("units", [5, 64])
def test_saturated_gates_stay_finite_and_broken_ones_show(units: int) -> None:
    layer, x = layer_and_input(units=units)
    with torch.no_grad():
        assert layer(1e6 * x).abs().max() <= 1
        x[1, 2, 0] = math.nan
        assert layer(x).isnan().any(2).tolist() == [[False] * 7, [False] * 2 + [True] * 5, [False] * 7]


@pytest.fixture
def build_anew() -> Iterator[None]:
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.mark.usefixtures("build_anew")
@pytest.mark.parametrize(("variable", "value"), [("FEDAVG_NATIVE", "0"), ("CC", "no-such-compiler"), ("CC", "false")])
def test_without_a_compiler_torchscript_runs(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    layer, x = layer_and_input(units=64)
    assert lstm_native.kernel(64) == "torchscript"
    torch.testing.assert_close(layer(x), reference(layer, x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_runs_on_a_gpu() -> None:
    layer, x = layer_and_input()
    expected = layer(x)
    torch.testing.assert_close(layer.cuda()(x.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
