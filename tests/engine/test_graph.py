"""The fast path equals the plain path, on modules of many kinds, or says why it cannot be taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedavg import Examples, Task, native
from fedavg.engine import plain
from fedavg.engine.emit import Emitter
from fedavg.engine.graph import GraphEpochs
from fedavg.engine.model import Model
from fedavg.engine.pieces import Piece
from fedavg.engine.tape import record
from fedavg.engine.trainer import Trainer
from fedavg.errors import TaskError
from fedavg.optimizers import SGD, Steps
from fedavg.optimizers.optimizer import fresh
from toys import TOY, passed


class Tied(nn.Module):
    """The same weight in two places: its gradient is a sum of products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 4)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(x @ self.weight) @ self.weight.t())


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.used(x)


class InPlace(nn.Module):
    """Writes over activations that a weight gradient has been computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = F.relu(self.a(x.clone().mul_(2)), inplace=True)
        return self.b(h.mul(0.5))


class Attention(nn.Module):
    """Embedding, attention and layer norm over sequences; targets per position, some of them ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out = nn.Linear(16, 11)

    def forward(self, x):
        return self.out(self.layer(self.embed(x))).transpose(1, 2)


class Constant(nn.Module):
    """Holds a tensor that is neither parameter nor buffer, and makes others on the fly."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.linspace(0.5, 1.5, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x * self.scale + torch.arange(8) * 0.1 + torch.tensor([0.5]))


class Factored(nn.Module):
    """A weight that is a product of two: the gradient of each is made from the other, before either is stepped."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 8) / 3)

    def forward(self, x):
        return F.linear(x, self.u @ self.v)


class ByNumber(nn.Module):
    """Picks columns by their numbers, which depends on no value of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.order: torch.Tensor
        self.register_buffer("order", torch.tensor([7, 0, 1, 2, 3, 4, 5, 6]))

    def forward(self, x):
        return self.out(x[:, self.order])


def images(n):
    g = torch.Generator().manual_seed(0)
    return torch.rand(n, 3, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)


def points(n):
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 8, generator=g), torch.randint(0, 3, (n,), generator=g)


def tokens(n):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 11, (n, 5), generator=g)
    y[0, 3:] = -100
    return torch.randint(0, 11, (n, 5), generator=g), y


def sequence_net():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm, self.out = nn.Embedding(11, 6), nn.LSTM(6, 7, batch_first=True), nn.Linear(7, 11)

        def forward(self, x):
            return self.out(self.lstm(self.embed(x))[0]).transpose(1, 2)

    return Net()


def conv_net():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3, groups=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def dropout_net():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))


def norm_net():
    return nn.Sequential(nn.Linear(8, 6, bias=False), nn.LayerNorm(6), nn.Linear(6, 3))


def tanh_net():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))


def own_loss(output, y):
    return F.mse_loss(output, output.detach() * 0.5 + y[:, None])


MODULES = {
    "mlp": (TOY, points),
    "dropout": (Task("t", dropout_net), points),
    "batch norm": (Task("t", conv_net), images),
    "layer norm, no bias": (Task("t", norm_net), points),
    "tied": (Task("t", Tied), points),
    "unused": (Task("t", Unused), points),
    "in place": (Task("t", InPlace), points),
    "constants": (Task("t", Constant), points),
    "attention": (Task("t", Attention), tokens),
    "lstm": (Task("t", sequence_net), tokens),
    "factored": (Task("t", Factored), points),
    "columns by number": (Task("t", ByNumber), points),
    "squared loss": (Task("t", tanh_net, loss=own_loss), points),
}


def train(engine, model, examples, batch, epochs=3, optimizer=SGD(), correction=None):  # noqa: B008
    torch.manual_seed(7)
    steps = fresh(optimizer, len(model.trainable), 0.05, correction)
    losses = [float(passed(engine, examples, batch, steps)) for _ in range(epochs)]
    return model.vector.clone(), losses


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("batch", [4, 13])
def test_fast_equals_plain(name, batch):
    """Three epochs over 13 examples, with a short last batch or all at once: weights, statistics and losses."""
    task, make = MODULES[name]
    examples = Examples(*make(13))
    expected_model, got_model = Model(task, seed=0), Model(task, seed=0)
    expected, losses = train(plain.PlainEpochs(expected_model), expected_model, examples, batch)
    got, fast_losses = train(GraphEpochs(got_model), got_model, examples, batch)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert fast_losses == pytest.approx(losses, rel=1e-4)
    assert losses[-1] != losses[0]
    for fast, slow in zip(got_model.module.buffers(), expected_model.module.buffers(), strict=True):
        torch.testing.assert_close(fast, slow)


def test_the_update_is_folded_into_the_product():
    x, y = points(4)
    source = Emitter(record(Model(TOY, seed=0), Examples(x, y))).source()
    assert source.count(".addmm_(") == 2, "both weights"
    assert source.count(".addmv_(") == 2, "both biases"
    assert ".sub_(" not in source
    assert "aten.detach" not in source


def test_a_bias_is_rounded_once_however_many_rows_there_are():
    """600 rows of one positive gradient each: added to the bias one by one, each would be rounded to its last digit."""
    task = Task("bias", lambda: nn.Linear(8, 3), loss=lambda output, y: (output * y).sum() / 600)
    model = Model(task, seed=0)
    x, y = torch.randn(600, 8), torch.rand(600, 3)
    with torch.no_grad():
        bias = model.parameters["bias"].fill_(1)
    passed(GraphEpochs(model), Examples(x, y), 600, Steps(SGD(), 0.01))
    exact = 1 - 0.01 * y.double().mean(0)
    assert (bias - exact).abs().max() <= torch.finfo(torch.float32).eps


def test_a_product_whose_factor_is_overwritten_is_not_folded():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 3)
            self.buffer: torch.Tensor
            self.register_buffer("buffer", torch.zeros(4, 8))

        def forward(self, x):
            return self.a(self.buffer.copy_(x))

    x, y = points(4)
    assert ".addmm_(" not in Emitter(record(Model(Task("t", Net), seed=0), Examples(x, y))).source()


def test_recording_leaves_no_trace():
    """A new shape in the middle of training is recorded by taking a step, which must not count."""
    task, make = MODULES["batch norm"]
    x, y = make(6)
    model = Model(task, seed=0)
    graph = GraphEpochs(model)
    before, state = model.vector.clone(), torch.get_rng_state()
    graph.prepare(Piece(Examples(x, y), len(x)))
    assert torch.equal(model.vector, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.module[1].num_batches_tracked == 0


class LooksAtData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x if x.sum() > 0 else -x)


class HidesItsLook(LooksAtData):
    """Goes round PyTorch, so that only the comparison with the plain path can notice."""

    def forward(self, x):
        return self.out(x) * torch.from_numpy(x.detach().numpy().max(keepdims=True))


@pytest.mark.parametrize(
    ("module", "reason"), [(LooksAtData, "it looks at the values of its data"), (HidesItsLook, "differs")]
)
def test_what_can_not_be_traced_takes_the_plain_path(module, reason):
    x, y = points(6)
    trainer = Trainer(Task("t", module), seed=0)
    start = trainer.weights.clone()
    trainer.choose_engine("auto", Examples(x, y))
    assert trainer.engine.name == "plain"
    assert reason in trainer.engine.reason
    assert torch.equal(trainer.weights, start)
    with pytest.raises(TaskError, match="engine 'graph' cannot train 't': .*use engine 'plain'"):
        trainer.choose_engine("graph", Examples(x, y))


def test_auto_takes_the_graph_when_it_can():
    trainer = Trainer(TOY, seed=0)
    trainer.choose_engine("auto", Examples(*points(6)))
    assert trainer.engine.name in ("graph", native.marked("graph with native steps"))
    trainer = Trainer(TOY, seed=0)
    trainer.choose_engine("plain", Examples(*points(6)))
    assert trainer.engine.name == "plain"


def test_a_module_that_does_not_fit_its_data_is_named():
    trainer = Trainer(TOY, seed=0)
    with pytest.raises(TaskError, match=r"'toy' cannot be trained on x \(4, 5\) torch.float32, y \(4,\) torch.int64"):
        trainer.choose_engine("auto", Examples(torch.rand(4, 5), torch.zeros(4, dtype=torch.int64)))
