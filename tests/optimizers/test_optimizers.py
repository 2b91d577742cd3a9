"""Local optimisers step as `torch.optim` does, on the plain and on the fast path."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedavg
from fedavg import SGD, Adam, AdamW, Correction, Examples, Task
from fedavg.engine import plain
from fedavg.engine.graph import GraphEpochs
from fedavg.engine.model import Model
from fedavg.errors import PlanError
from fedavg.optimizers import OPTIMIZERS, make_optimizer
from fedavg.optimizers.optimizer import fresh
from toys import blobs, line_plan, passed, toy_plan

ETA = 0.05
CASES = {
    "plain": (SGD(), lambda p: torch.optim.SGD(p, ETA)),
    "momentum": (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, ETA, momentum=0.9)),
    "nesterov": (SGD(0.9, nesterov=True), lambda p: torch.optim.SGD(p, ETA, momentum=0.9, nesterov=True)),
    "weight decay": (SGD(weight_decay=0.1), lambda p: torch.optim.SGD(p, ETA, weight_decay=0.1)),
    "momentum and decay": (
        SGD(0.8, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, ETA, momentum=0.8, weight_decay=0.1),
    ),
    "nesterov and decay": (
        SGD(0.8, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, ETA, momentum=0.8, weight_decay=0.1, nesterov=True),
    ),
    "adam": (Adam(), lambda p: torch.optim.Adam(p, ETA)),
    "adam and decay": (
        Adam(0.8, 0.99, 1e-6, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, ETA, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    ),
    "adamw": (AdamW(weight_decay=0.1), lambda p: torch.optim.AdamW(p, ETA, weight_decay=0.1)),
    "clipped": (SGD(momentum=0.9, clip_norm=0.1), lambda p: torch.optim.SGD(p, ETA, momentum=0.9)),
    "clipped adam": (Adam(clip_norm=0.1), lambda p: torch.optim.Adam(p, ETA)),
}


def net():
    """A convolution too: its gradients are no products of matrices."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 6),
        nn.Tanh(),
        nn.Linear(6, 3),
    )


TASK = Task("net", net)


def by_torch(make, clip=None, correction=None):
    """Three epochs over 10 examples in batches of 4, 4 and 2, as anyone would write them."""
    x, y = blobs(10, seed=0)
    model = Model(TASK, seed=0)
    parameters = list(model.module.parameters())
    optimizer = make(parameters)
    for _epoch in range(3):
        for xs, ys in zip(x.split(4), y.split(4), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model.module(xs), ys)
            if correction:
                w = torch.cat([p.flatten() for p in parameters])
                loss = (
                    loss + correction.pull / 2 * (w - correction.towards).square().sum() + (w * correction.drift).sum()
                )
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
    return model.vector.detach().clone()


def by_us(engine, optimizer, correction=None):
    model = Model(TASK, seed=0)
    epochs = GraphEpochs(model) if engine == "graph" else plain.PlainEpochs(model)
    steps = fresh(optimizer, len(model.trainable), ETA, correction)
    for _epoch in range(3):
        passed(epochs, Examples(*blobs(10, seed=0)), 4, steps)
    return model.vector.clone()


@pytest.mark.parametrize("engine", ["plain", "graph"])
@pytest.mark.parametrize("name", CASES)
def test_it_steps_as_pytorchs_own(name, engine):
    optimizer, make = CASES[name]
    clip = optimizer.clip_norm if optimizer.clip_norm < 1 else None
    expected, start = by_torch(make, clip), Model(TASK, seed=0).vector
    assert (by_us(engine, optimizer) - expected).norm() <= 2e-5 * (expected - start).norm()


@pytest.mark.parametrize("engine", ["plain", "graph"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("parts", ["pull", "drift", "both"])
def test_a_correction_is_the_gradient_of_what_it_adds_to_the_loss(name, engine, parts):
    """pull / 2 |w - towards|² + <drift, w>"""
    optimizer, make = CASES[name]
    size = len(Model(TASK, seed=0).trainable)
    g = torch.Generator().manual_seed(3)
    towards, drift = 0.3 * torch.randn(size, generator=g), 0.02 * torch.randn(size, generator=g)
    pull = 0.0 if parts == "drift" else 0.7
    used = Correction(pull, towards if pull else None, None if parts == "pull" else drift)
    written = Correction(pull, towards, torch.zeros(size) if parts == "pull" else drift)
    clip = optimizer.clip_norm if optimizer.clip_norm < 1 else None
    expected, start = by_torch(make, clip, written), Model(TASK, seed=0).vector
    assert (by_us(engine, optimizer, used) - expected).norm() <= 1e-4 * (expected - start).norm()


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_momentum_starts_afresh_in_every_round_or_is_kept(engine):
    """One weight, both clients, one step a round: without keep it is plain SGD; with it, v carries over."""
    changes = {"E": 1, "rounds": 3, "engine": engine}
    after = {
        text: float(list(fedavg.train(line_plan(optimizer=text, **changes)))[-1].state.weights)
        for text in ("sgd", "sgd:momentum=0.5", "sgd:momentum=0.5:keep=true")
    }
    assert after["sgd"] == pytest.approx(after["sgd:momentum=0.5"], rel=1e-6)
    w, v = 2.0, [0.0, 0.0]
    slopes, counts = (lambda w: 2 * (w - 1), lambda w: 4 * w - 4 / 3), (1, 3)
    for _round in range(3):
        v = [0.5 * old + slope(w) for old, slope in zip(v, slopes, strict=True)]
        w -= sum(n * 0.1 * step for n, step in zip(counts, v, strict=True)) / 4
    assert after["sgd:momentum=0.5:keep=true"] == pytest.approx(w, rel=1e-6)


@pytest.mark.parametrize(
    "text", ["sgd:momentum=0.9:keep=true", "adam:keep=true", "adamw", "sgd:nesterov=true:momentum=0.5"]
)
def test_the_same_bits_on_any_number_of_workers_and_after_a_resume(text, tmp_path):
    plan = toy_plan(optimizer=text, lr=0.02, rounds=5, checkpoint_s=0)
    whole = fedavg.run(plan)
    assert fedavg.run(toy_plan(optimizer=text, lr=0.02, rounds=5, workers=1)).summary.model_sha256 == (
        whole.summary.model_sha256
    )
    with pytest.raises(KeyboardInterrupt):
        fedavg.run(plan, tmp_path / "run", stop_after_three)
    resumed = fedavg.resume(tmp_path / "run", task=plan.task, data=plan.data)
    assert resumed.summary.model_sha256 == whole.summary.model_sha256


def stop_after_three(event):
    if event.round == 3:
        raise KeyboardInterrupt


def test_every_optimiser_is_compared_with_pytorchs():
    assert {type(optimizer) for optimizer, _ in CASES.values()} == set(OPTIMIZERS.values())


def test_an_object_is_the_same_plan_as_its_text():
    plan, text = toy_plan(optimizer=SGD(momentum=0.9)), toy_plan(optimizer="sgd:0.9")
    assert plan.optimizer == "sgd:0.9"
    assert plan.digest == text.digest
    assert make_optimizer(plan.optimizer) == SGD(momentum=0.9)
    assert toy_plan().digest == toy_plan(optimizer="sgd").digest


class Own(fedavg.Optimizer):
    """A user's own: steps by the sign of the gradient."""

    name = "signs"

    def step(self, w, g, slots, lr, t):
        w.sub_(g.sign(), alpha=lr / t)


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_a_users_own_optimiser_is_taken_on_both_paths(engine):
    """w = 2: both slopes are positive, so each client goes down by 0.1, then by 0.1 / 2."""
    last = list(fedavg.train(line_plan(optimizer=Own(), rounds=1, E=2, engine=engine)))[-1]
    assert float(last.state.weights) == pytest.approx(2 - 0.15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "sgd:momentum=1"}, "sgd: momentum is 1.0; expected a number from 0 and below 1"),
        ({"optimizer": "sgd:nesterov=true"}, "sgd: nesterov is True; expected false, or a momentum above 0"),
        ({"optimizer": "sgd:keep=true"}, "sgd: keep is True; expected false, or a momentum above 0"),
        ({"optimizer": "adam:beta2=1"}, "adam: beta2 is 1.0"),
        ({"optimizer": "lamb"}, "optimizer: got 'lamb'; expected"),
        (
            {"optimizer": "sgd:0.9", "algorithm": "fedsgd", "E": 1, "B": "inf"},
            "clients send a gradient and take no step",
        ),
        ({"optimizer": "adam", "algorithm": "scaffold"}, "scaffold: got optimizer 'adam'; expected 'sgd'"),
        ({"optimizer": "adam", "algorithm": "fednova"}, "fednova: got optimizer 'adam'; expected 'sgd'"),
        (
            {"optimizer": "sgd:0.9", "algorithm": "sgd", "E": 1},
            "would start from zero at every step; expected 'sgd:0.9:keep=true'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_round_1(changes, message):
    with pytest.raises(PlanError, match=message):
        next(fedavg.train(toy_plan(**changes)))


def test_fednova_divides_by_how_often_gradients_count():
    """Three steps with momentum 0.5: the first gradient counts 1 + 1/2 + 1/4 times, the second 3/2, the third 1."""
    assert SGD(momentum=0.5).effective_steps(3) == pytest.approx(1.75 + 1.5 + 1)
    assert SGD(momentum=0.5, nesterov=True).effective_steps(2) == pytest.approx(2 + 0.5 * 2.5)
    assert SGD().effective_steps(3) == 3
