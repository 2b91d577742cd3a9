"""Steps by kernels of our own equal the plain path, for every operator that has an instruction and for odd sizes."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedavg import Examples, Task, native
from fedavg.bench.models import ADAPTED, ENCODER, RESNET
from fedavg.engine import native_epoch
from fedavg.engine.emit import Kind
from fedavg.engine.program import _places, write_program
from fedavg.engine.tape import record
from fedavg.engine.trainer import Trainer
from fedavg.engine.writer import INSTRUCTIONS, POINTWISE, Spot
from fedavg.errors import TaskError
from fedavg.optimizers import SGD, Correction
from fedavg.tasks.lstm import PeepholeLSTM
from fedavg.tasks.shakespeare import token_loss
from toys import TOY, blobs, epoch, epoch_by

needs_kernels = pytest.mark.skipif(native_epoch.built() is None, reason="no kernels here")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(300, 203), nn.ReLU(), nn.Linear(203, 10))


PERCEPTRON = Task("perceptron", perceptron)


def mostly_zeros(count: int, seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 300, generator=draw) * (torch.rand(count, 300, generator=draw) < 0.15)
    return Examples(x, torch.randint(0, 10, (count,), generator=draw))


class Each(nn.Module):
    """A layer, whatever is done to each number, and a layer."""

    def __init__(self, change):
        super().__init__()
        self.first, self.last, self.change = nn.Linear(8, 37), nn.Linear(37, 3), change

    def forward(self, x):
        return self.last(self.change(self.first(x)))


class Normed(nn.Module):
    def __init__(self, width=33, affine=True):
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 3)
        self.norm = nn.LayerNorm(width, elementwise_affine=affine)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Grouped(nn.Module):
    """A group norm over images whose channels lie side by side; the classes of their mean."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.GroupNorm(3, 6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.rand(6, 1, 1))

    def forward(self, x):
        return self.last((self.norm(x * self.scale) * self.scale).mean((2, 3)))


class Convolving(nn.Module):
    """Two convolutions, then the classes of the mean over all pixels."""

    def __init__(self, channels=5, side=3, stride=1, padding=1, bias=True):
        super().__init__()
        self.first = nn.Conv2d(6, channels, side, stride, padding, bias=bias)
        self.second, self.last = nn.Conv2d(channels, 19, 1, 2), nn.Linear(19, 3)

    def forward(self, x):
        return self.last(self.second(torch.tanh(self.first(x))).mean((2, 3)))


class Pooling(nn.Module):
    """Convolutions with few channels, pooling after the first; the second passes its gradient on."""

    def __init__(self, pool, channels=7, stride=1, padding=2):
        super().__init__()
        self.first, self.pool = nn.Conv2d(6, channels, 2), pool
        self.second, self.last = nn.Conv2d(channels, 19, 5, stride, padding), nn.Linear(19, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(self.pool(torch.tanh(self.first(x))))).mean((2, 3)))


class Attending(nn.Module):
    """By PyTorch's attention, or by products and a softmax."""

    def __init__(self, causal=True, by_hand=False, width=24, heads=2):
        super().__init__()
        self.causal, self.by_hand, self.heads = causal, by_hand, heads
        self.table = nn.Embedding(11, width, padding_idx=3)
        self.three, self.last = nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, x):
        rows, length = x.shape
        parts = self.three(self.table(x)).chunk(3, dim=-1)
        q, k, v = (part.reshape(rows, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.by_hand:
            mixed = torch.softmax(q @ k.transpose(2, 3) / 4.0, -1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.last(mixed.transpose(1, 2).reshape(rows, length, -1)).transpose(1, 2)


class Parts(nn.Module):
    """Takes a tensor apart and puts it together in another order."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 12), nn.Linear(11, 3)

    def forward(self, x):
        h = self.first(x).view(-1, 3, 4)
        joined = torch.cat([h[:, 2], h[:, 0] - h[:, 1], 2.0 - h[:, 1] * h[:, 0]], 1)
        return self.last(joined[:, 1:]) / 3 + 1.5


class Copied(nn.Module):
    """Copies in another order that attention reads, and so does what follows; one that nothing but attention reads."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(11, 24), nn.Linear(24, 48), nn.Linear(12, 5)

    def forward(self, x):
        rows, length = x.shape
        q, k = self.first(self.table(x)).view(rows, length, 2, 2, 12).permute(2, 0, 3, 1, 4).contiguous()
        v = q.transpose(1, 2).contiguous().transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v) + q
        return self.last(torch.cat([mixed[:, 0], v[:, 1]], 1)[:, :length]).transpose(1, 2)


class Summed(nn.Module):
    """Products as parts of sums: with a bias, beside another, one that is read twice, one that is turned."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)
        self.bias = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x):
        y = self.second(x) + self.bias
        z = self.first(y)
        z = z + torch.tanh(z) + (self.second(z) + self.first(y)) + (y + self.second(y))
        return self.last(z + self.second(x)[0] + self.second(y).t().reshape(z.shape))


class Spread(nn.Module):
    """Classes of each pixel of images; `looked_at` asks for the logarithms themselves too."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(6, 5, 3, padding=1)

    def forward(self, x):
        return self.first(x)


def looked_at(output, y):
    logarithms = torch.log_softmax(output, 1)
    return F.nll_loss(logarithms, y) - 0.1 * logarithms.mean()


class Recurrent(nn.Module):
    """Two peephole LSTMs over tokens, of which 0 begins a text; more units than one strip of weights."""

    def __init__(self):
        super().__init__()
        self.table, self.lower, self.upper = nn.Embedding(11, 5), PeepholeLSTM(5, 64), PeepholeLSTM(64, 32)
        self.last = nn.Linear(32, 5)

    def forward(self, x):
        starts = x == 0
        return self.last(self.upper(self.lower(self.table(x), starts), starts)).transpose(1, 2)


def points(n):
    return Examples(*blobs(n, seed=5))


def planes(n):
    return Examples(torch.rand(n, 6, 5, 3), torch.arange(n) % 3)


def squares(n):
    return Examples(torch.rand(n, 6, 11, 11), torch.arange(n) % 3)


def masks(n):
    y = torch.arange(n * 121).view(n, 11, 11) % 5
    y[:, 4] = -100  # ignored
    return Examples(torch.rand(n, 6, 11, 11), y)


def colours(n):
    return Examples(torch.rand(n, 3, 32, 32), torch.arange(n) % 10)


def texts(length, n):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 5, (n, length), generator=generator)
    y[:, 0] = -100  # ignored
    return Examples(torch.randint(0, 11, (n, length), generator=generator), y)


summed = partial(F.cross_entropy, reduction="sum")
CASES = {
    **{
        name: (Task(name, partial(Each, change)), points)
        for name, change in {
            "relu": F.relu, "in place": partial(F.relu, inplace=True), "gelu": F.gelu, "tanh": torch.tanh,
            "gelu tanh": partial(F.gelu, approximate="tanh"), "sigmoid": torch.sigmoid, "silu": F.silu,
            "exponential": lambda x: torch.exp(x / 4), "root": lambda x: torch.sqrt(x * x + 1),
            "softmax": partial(torch.softmax, dim=1), "quotient": lambda x: x / (1 + x * x), "minus": lambda x: -x,
            "twice": lambda x: x + x.mean(1, keepdim=True), "centred": lambda x: x - x.mean(0),
        }.items()
    },
    "layer norm": (Task("layer norm", Normed), points),
    "layer norm of 64, without weights": (Task("plain norm", partial(Normed, 64, False)), points),
    "group norm": (Task("group norm", Grouped), planes),
    "convolution": (Task("convolution", Convolving), squares),
    "convolution of 40, by two, without bias": (Task("by two", partial(Convolving, 40, 3, 2, 1, False)), squares),
    "convolution by three, without padding": (Task("by three", partial(Convolving, 16, 3, 3, 0)), squares),
    "even kernel": (Task("even", partial(Convolving, 66, 2, 1, 1)), squares),
    **{
        name: (Task(name, partial(Pooling, pool, *sizes)), squares)
        for name, pool, *sizes in (
            ("max pool", nn.MaxPool2d(2)), ("max pool that overlaps", nn.MaxPool2d(3, 2, 1), 20, 2),
            ("max pool over the end", nn.MaxPool2d((3, 4), ceil_mode=True), 33, 1, 3), ("mean pool", nn.AvgPool2d(2)),
            ("mean pool with padding", nn.AvgPool2d(3, 2, 1, ceil_mode=True), 16),
            ("mean pool without it", nn.AvgPool2d(3, 2, 1, count_include_pad=False), 3, 2),
            ("adaptive pool", nn.AdaptiveAvgPool2d((5, 2)), 8),
        )
    },
    "causal attention": (Task("causal", Attending), partial(texts, 9)),
    "long attention": (Task("long", partial(Attending, True)), partial(texts, 70)),
    "attention to all": (Task("all", partial(Attending, False)), partial(texts, 33)),
    "attention by hand": (Task("by hand", partial(Attending, by_hand=True)), partial(texts, 7)),
    "attention to copies": (Task("copied", Copied), partial(texts, 9)),
    "recurrence": (Task("recurrent", Recurrent), partial(texts, 7)),
    "texts": (Task("texts", Recurrent, lambda o, y: token_loss(o.transpose(1, 2), y), {}), partial(texts, 8)),
    "parts": (Task("parts", Parts), points),
    "sums of products": (Task("summed", Summed), points),
    "classes of pixels": (Task("spread", Spread, metrics={}), masks),
    "logarithms": (Task("logarithms", partial(Each, torch.tanh), looked_at, {}), points),
    "sum": (Task("sum", partial(Each, F.relu), loss=lambda o, y: summed(o, y) / 7, metrics={}), points),
    "encoder": (ENCODER, lambda n: Examples(torch.arange(n * 32).view(n, 32) % 100, torch.ones(n, 32).long())),
    "adapted": (ADAPTED, lambda n: Examples(torch.arange(n * 32).view(n, 32) % 97, torch.ones(n, 32).long())),
}  # fmt: skip


def both(task, examples, batch, optimizer=None, correction=None, epochs=2):
    """The weights after two epochs and the last loss, by our kernels and by the plain path."""
    found = []
    for engine in ("graph", "plain"):
        trainer = Trainer(task, 0, "cpu", optimizer or SGD())
        trainer.choose_engine(engine, Examples(examples.x[:batch], examples.y[:batch]))
        assert ("native steps" in trainer.engine.name) == (engine == "graph"), trainer.engine
        steps = trainer.steps(0.1, correction(trainer) if correction else None)
        for _ in range(epochs):
            loss = epoch_by(trainer, examples, batch, steps)
        found.append((trainer.weights.clone(), loss))
    return found


def assert_close(found):
    (fast, fast_loss), (slow, slow_loss) = found
    assert (fast - slow).norm() <= 1e-4 * slow.norm()
    torch.testing.assert_close(fast_loss, slow_loss, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("name", CASES)
def test_our_kernels_equal_the_plain_path(name):
    """13 examples in batches of 5, the last of 3."""
    task, make = CASES[name]
    assert_close(both(task, make(13), 5))


@needs_kernels
@pytest.mark.parametrize("name", ["causal attention", "attention to copies", "sums of products", "classes of pixels",
                                  "texts", "encoder", "gelu", "exponential"])  # fmt: skip
def test_kernels_for_avx2_equal_the_plain_path(name, avx2):
    task, make = CASES[name]
    assert_close(both(task, make(13), 5))


@needs_kernels
def test_no_copy_is_made_between_attention_and_its_projections():
    """The encoder turns (rows, time) to (time, rows) and back: a copy before and after each attention is left."""
    trainer = Trainer(ENCODER, seed=0)
    tape = record(trainer.model, CASES["encoder"][1](3))
    copied = POINTWISE.index("copy")
    words = write_program(tape, Kind()).code.tolist()
    copies, filled, at = 0, 0, 0
    while at < len(words):
        number, length, what = words[at : at + 3]
        copies += number == INSTRUCTIONS.index("pointwise") and what == copied
        filled += number == INSTRUCTIONS.index("pointwise") and what == POINTWISE.index("fill")
        at += 2 + length
    assert (copies, filled) == (4, 1)  # the gradient of the loss is filled


@needs_kernels
def test_a_step_of_a_resnet_equals_the_plain_path():
    """One step: over more, a ReLU that just opens in one and not in the other would be seen."""
    assert_close(both(RESNET, colours(7), 7, epochs=1))


@needs_kernels
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 70), st.integers(1, 90), st.integers(1, 140), st.integers(0, 3))
def test_products_of_any_size(rows, width, hidden, seed):
    """Few rows and many, whole vectors and rests, sums of one piece and of two."""
    torch.manual_seed(seed)
    depth = width * (8 if seed == 3 else 1)
    task = Task("sizes", lambda: nn.Sequential(nn.Linear(depth, hidden), nn.Tanh(), nn.Linear(hidden, 3)))
    assert_close(both(task, Examples(torch.randn(rows, depth), torch.arange(rows) % 3), rows))


@needs_kernels
@pytest.mark.parametrize(
    "optimizer",
    [SGD(momentum=0.9), SGD(momentum=0.9, nesterov=True), SGD(weight_decay=0.1), SGD(momentum=0.5, weight_decay=0.1),
     SGD(clip_norm=0.5)],
)  # fmt: skip
@pytest.mark.parametrize("corrected", [False, True])
def test_every_kind_of_step_equals_the_plain_path(optimizer, corrected):
    def correction(trainer):
        n = len(trainer.weights)
        return Correction(0.3, torch.linspace(-1, 1, n), torch.linspace(0.1, -0.1, n))

    assert_close(both(TOY, points(11), 4, optimizer, correction if corrected else None))


@needs_kernels
def test_a_class_that_there_is_not_is_an_error_and_no_crash():
    trainer = Trainer(TOY, seed=0)
    trainer.choose_engine("graph", points(4))
    bad = Examples(points(4).x, torch.tensor([0, 1, 99, 2]))
    with pytest.raises(TaskError, match=r"out of bounds.*|.*from 0 to 99"):
        epoch(trainer, bad, 4, 0.1)


@needs_kernels
def test_a_token_that_there_is_not_is_an_error_and_no_crash():
    trainer = Trainer(ENCODER, seed=0)
    x = torch.zeros(4, 32, dtype=torch.int64)
    trainer.choose_engine("graph", Examples(x, x))
    with pytest.raises(TaskError, match="out of bounds"):
        epoch(trainer, Examples(x + 100, x), 4, 0.1)


@needs_kernels
def test_pooling_finds_the_first_of_equals_and_what_is_no_number():
    """One window of 2 x 2: the gradient goes to the first of the largest, as in PyTorch; NaN is larger than all."""

    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, 4, 2, 2))

        def forward(self, x):
            return F.max_pool2d((x * self.scale).contiguous(memory_format=torch.channels_last), 2).flatten(1)

    x = torch.tensor([[1.0, 2, 2, 0], [3, 3, 3, 3], [-5, -7, -6, -5], [0, 1, 2, 3]]).view(1, 4, 2, 2).repeat(3, 1, 1, 1)
    task = Task("window", Window, loss=lambda o, y: o.sum() / 3, metrics={})
    fast, slow = (weights for weights, _ in both(task, Examples(x, torch.zeros(3)), 3, epochs=1))
    assert torch.equal(fast, slow)
    assert (fast != 1).view(4, 4).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    trainer = Trainer(task, 0)
    trainer.choose_engine("graph", Examples(x, torch.zeros(3)))
    x[0, 0, 0, 0] = float("nan")
    assert epoch(trainer, Examples(x, torch.zeros(3)), 3, 0.1).isnan()


def test_a_step_with_another_operator_runs_as_torchscript():
    task = Task("sorted", partial(Each, lambda x: x.cumsum(1)))
    trainer = Trainer(task, seed=0)
    trainer.choose_engine("graph", points(4))
    assert trainer.engine.name == "graph"


def test_without_kernels_the_same_step_runs_as_torchscript(monkeypatch):
    monkeypatch.setattr(native, "library", lambda source: None)
    trainer = Trainer(TOY, seed=0)
    trainer.choose_engine("graph", points(4))
    assert trainer.engine.name == "graph"


@needs_kernels
def test_the_order_in_which_lengths_are_met_changes_no_bit():
    ends = []
    for sizes in ((5, 3, 1), (1, 3, 5)):
        trainer = Trainer(ENCODER, seed=0)
        examples = CASES["encoder"][1](5)
        trainer.choose_engine("graph", examples)
        for size in sizes:
            epoch(trainer, Examples(examples.x[:size], examples.y[:size]), size, 0.0)
        epoch(trainer, examples, 3, 0.1)
        ends.append(trainer.weights.clone())
    assert torch.equal(*ends)


@needs_kernels
def test_trainers_in_several_threads_do_not_disturb_each_other():
    """As devices within one app: each thread has its own room for the factors of products."""

    def ready(seed: int) -> tuple[Trainer, Examples]:  # PyTorch has one generator for the first weights of all threads
        trainer, examples = Trainer(PERCEPTRON, seed), mostly_zeros(200, seed)
        trainer.choose_engine("graph", examples)
        return trainer, examples

    def trained(one: tuple[Trainer, Examples]) -> torch.Tensor:
        trainer, examples = one
        for _ in range(20):
            epoch(trainer, examples, 100, 0.1)
        return trainer.weights.clone()

    alone = [trained(ready(seed)) for seed in range(4)]
    several = [ready(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(trained, several))
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, 500)), min_size=1, max_size=12))
def test_what_is_needed_at_the_same_time_never_overlaps(tensors):
    """Each tensor is named in its first line and some lines later."""
    sizes = {f"v{i}": size for i, (_, _, size) in enumerate(tensors)}
    lines = [(0, []) for _ in range(16)]
    for i, (first, more, _) in enumerate(tensors):
        for line in (first, first + more):
            lines[line][1].append(Spot(f"v{i}", 0))
    places, top = _places(lines, sizes, "none")
    for i, (first, more, size) in enumerate(tensors):
        assert places[f"v{i}"] + size <= top
        for j, (other, longer, width) in enumerate(tensors[:i]):
            if other <= first + more and first <= other + longer:
                a, b = places[f"v{i}"], places[f"v{j}"]
                assert a + size <= b or b + width <= a
