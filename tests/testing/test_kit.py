"""The kit finds what is wrong with parts of your own, and says how to fix it."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedavg import Task, Update
from fedavg.algorithms.fedavg import FedAvg
from fedavg.codecs import Codec
from fedavg.codecs.dense import Float32
from fedavg.metrics import METRICS, Metric, make_metric
from fedavg.optimizers import OPTIMIZERS, Optimizer, make_optimizer
from fedavg.samplers import SAMPLERS, Sampler, make_sampler
from fedavg.stages import STAGES, Stage, make_stage
from fedavg.tasks import TASKS
from fedavg.testing import (
    CheckFailed,
    check_algorithm,
    check_codec,
    check_data,
    check_metric,
    check_optimizer,
    check_sampler,
    check_stage,
    check_task,
    check_world,
)
from fedavg.testing.problem import small_data
from fedavg.world import Always, make_world
from fedavg.world.presence import OnOff
from toys import TOY, toy_data


@pytest.mark.parametrize("spec", [*(name for name in SAMPLERS if name != "choice"), "choice:4"])
def test_every_sampler_passes(spec):
    check_sampler(make_sampler(spec))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_passes(name):
    check_optimizer(make_optimizer(name), **({} if name == "sgd" else {"lr": 0.01}))


METRIC_SPECS = {name: name for name in METRICS} | {"topk": "topk:2", "class_accuracy": "class_accuracy:3", "f1": "f1:3"}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_passes(name):
    rng = torch.Generator().manual_seed(2)
    if name in ("mae", "rmse", "auc"):
        output, y = torch.randn(40, generator=rng), torch.randint(0, 2, (40,), generator=rng)
        check_metric(make_metric(METRIC_SPECS[name]), output, y if name == "auc" else y.float())
    else:
        check_metric(make_metric(METRIC_SPECS[name]))


STAGE_SPECS = {
    "clip": ("clip:1.0:quantile=0.5", ()),
    "weigh": ("weigh:cap=10", ()),
    "noise": ("noise:0.1", ("clip:1.0", "weigh:equal")),
    "localdp": ("localdp:8:1.0", ("weigh:equal",)),
}


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_passes(name):
    spec, before = STAGE_SPECS[name]
    check_stage(make_stage(spec), before)


@pytest.mark.parametrize("spec", ["always:lognormal", "diurnal:2:hours=20", "markov:0.5:0.1"])
def test_every_world_passes(spec):
    check_world(make_world(spec))


@dataclass(frozen=True)
class Shaky(Always):
    """Draws anew whenever somebody asks."""

    def presence(self, clients, seed):
        return OnOff(clients, 3600.0, 3600.0, int(np.random.default_rng().integers(1 << 30)))


def test_a_world_that_can_not_be_repeated_is_found():
    with pytest.raises(CheckFailed, match="who is there depends on when one looks"):
        check_world(Shaky())


def test_data_and_tasks_pass():
    check_data(toy_data())
    check_task(TOY)
    assert "mnist-2nn" in TASKS


class Stateful(FedAvg):
    """Keeps a number on the object."""

    name = "stateful"

    def __init__(self):
        self.calls = [0]

    def client_update(self, client, weights, work):
        self.calls[0] += 1
        update = super().client_update(client, weights, work)
        return replace(update, vector=update.vector * (1 + 0.01 * self.calls[0]))


@dataclass(frozen=True)
class Unlucky(FedAvg):
    """Draws from torch by itself."""

    name = "unlucky"

    def server_update(self, state, total, work):
        moved = super().server_update(state, total, work)
        return replace(moved, weights=moved.weights + 0.01 * torch.randn(len(moved.weights)))


@dataclass(frozen=True)
class Idle(FedAvg):
    name = "idle"

    def server_update(self, state, total, work):
        return state


@dataclass(frozen=True)
class Short(FedAvg):
    name = "short"

    def client_update(self, client, weights, work):
        return Update(weights[:-1], weight=client.n, metrics={"train_loss": 0.0})


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Idle(), "after 6 rounds the test loss is .*; expected less than 0.9"),
        (Unlucky(), "the same plan gave two models. Draw only from the generators that are given"),
        (Stateful(), "gave different models|another model than|gave two models"),
        (Short(), "a run with it failed"),
        (FedAvg, "is not a fedavg.Algorithm"),
    ],
)
def test_an_algorithm_with_a_mistake_is_told_so(algorithm, message):
    with pytest.raises(CheckFailed, match=message):
        check_algorithm(algorithm)


class Greedy(Float32):
    name = "greedy"

    def max_bytes(self, size):
        return 2 * size


class Careless(Codec):
    """Reads whatever it is given."""

    name = "careless"

    def pack(self, values, rng):
        return values.tobytes()

    def unpack(self, frame, size):
        return np.frombuffer(frame + bytes(4 * size), np.float32, size).copy()

    def max_bytes(self, size):
        return 4 * size + 100


class Crashing(Careless):
    name = "crashing"

    def unpack(self, frame, size):
        return np.frombuffer(frame, np.float32).reshape(size).copy()


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Greedy(), "4 bytes for 1 numbers; `max_bytes` says at most 2"),
        (Careless(), "read a frame of 119 bytes, where one has 120; expected self.check_length"),
        (Crashing(), "a damaged frame raised ValueError .*; expected a DataError"),
    ],
)
def test_a_codec_with_a_mistake_is_told_so(codec, message):
    with pytest.raises(CheckFailed, match=message):
        check_codec(codec)


@dataclass(frozen=True)
class MeanOfBatches(Metric):
    name, size, higher_is_better = "mean", 1, True

    def sums(self, output, y):
        return [(output.argmax(1) == y).double().mean()]

    def value(self, sums):
        return float(sums[0])


def test_a_metric_of_means_is_told_so():
    with pytest.raises(CheckFailed, match="Give sums, and do the division in `value`"):
        check_metric(MeanOfBatches())


@dataclass(frozen=True)
class Twice(Sampler):
    def draw(self, pool):
        return [pool.clients[0]] * pool.size


@dataclass(frozen=True)
class Chance(Sampler):
    def draw(self, pool):
        return np.random.default_rng().choice(pool.clients, pool.size, replace=False)


@pytest.mark.parametrize(
    ("sampler", "message"), [(Twice(), "expected each client once"), (Chance(), "draw only from pool.rng")]
)
def test_a_sampler_with_a_mistake_is_told_so(sampler, message):
    with pytest.raises(CheckFailed, match=message):
        check_sampler(sampler)


@dataclass(frozen=True)
class Counting(Stage):
    seen: list[int] = field(default_factory=list)

    def on_sum(self, total, work, rng):
        self.seen.append(1)
        return replace(total, vector=total.vector * (1 + 0.01 * len(self.seen)))


def test_a_stage_that_remembers_is_told_so():
    with pytest.raises(CheckFailed, match="stopped after round 3 and resumed gave another model"):
        check_stage(Counting())


@dataclass(frozen=True)
class Still(Optimizer):
    name = "still"

    def step(self, w, g, slots, lr, t):
        pass


def test_an_optimizer_that_does_nothing_is_told_so():
    with pytest.raises(CheckFailed, match="expected less than 0.9"):
        check_optimizer(Still())


def test_data_with_a_mistake_is_told_so():
    data = small_data()
    data._sizes = data._sizes + 1
    with pytest.raises(CheckFailed, match="client 0 has .* x and .* y; sizes says"):
        check_data(data)


SHARED = nn.Linear(8, 3)


def test_a_task_with_a_mistake_is_told_so():
    with pytest.raises(CheckFailed, match="`build` gave the same module twice; expected a new one"):
        check_task(Task("shared", lambda: SHARED))
    frozen = Task("frozen", lambda: nn.Linear(8, 3).requires_grad_(False))
    with pytest.raises(CheckFailed, match="a run with it cannot be started|training changed nothing"):
        check_task(frozen)
