"""Who is asked in a round: hand-computed draws, and whole runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedavg
from fedavg import seeds
from fedavg.cohorts import sample_cohort
from fedavg.dp.accounting import EveryRound, epsilon
from fedavg.errors import PlanError
from fedavg.samplers import SAMPLERS, InTurns, Pool, PowerOfChoice, Sampler, Uniform, Weighted, make_sampler
from fedavg.server import Round, train
from fedavg.setup import population_of, resolve, simulation
from toys import SIZES, toy_data, toy_plan

CLIENTS = np.array([0, 1, 3, 4, 5])
#: How each name of the registry is tried.
SPECS = {
    "fixed": "fixed",
    "poisson": "poisson",
    "weighted": "weighted",
    "turns": "turns",
    "choice": "choice:4",
    "corrected": "corrected",
    "oort": "oort",
}


def pool(round=1, size=2, attempt=0, seed=0, losses=None):
    rng = np.random.default_rng([seed, round, attempt])
    return Pool(round, attempt, size, CLIENTS, np.array(SIZES)[CLIENTS], rng, losses or (lambda clients: 1 / 0))


def test_every_sampler_is_tried():
    assert SPECS.keys() == SAMPLERS.keys()


def test_the_paper_s_cohorts_are_those_of_earlier_versions():
    """By hand: the draws of versions before samplers were parts of a plan."""
    for sampling, draw in (
        ("fixed", lambda rng: rng.choice(CLIENTS, 3, replace=False).tolist()),
        ("poisson", lambda rng: CLIENTS[rng.random(5) < 3 / 5].tolist()),
    ):
        plan, clients = toy_plan(sampling=sampling, seed=7), population_of(toy_data())
        for round in (1, 2, 9):
            assert sample_cohort(plan, clients, round) == draw(seeds.rng(7, round, seeds.NONE, "cohort"))
            assert sample_cohort(plan, clients, round, 2) == draw(seeds.rng(7, round, seeds.NONE, "cohort 2"))


def test_in_turns_everyone_comes_equally_often():
    turns = [InTurns().draw(pool(round)).tolist() for round in range(1, 6)]
    assert turns == [[0, 1], [3, 4], [5, 0], [1, 3], [4, 5]]
    assert InTurns().draw(pool(1, attempt=1)).tolist() == [3, 4], "another attempt asks others"


def test_weighted_draws_follow_n_k():
    draws = np.bincount([int(Weighted().draw(pool(size=1, seed=seed))[0]) for seed in range(4000)], minlength=6)
    expected = 4000 * np.array(SIZES) / sum(SIZES)
    assert (np.abs(draws - expected) <= 5 * np.sqrt(expected) + 1e-9).all()


def test_power_of_choice_takes_the_candidates_with_the_highest_loss():
    losses = {0: 0.1, 1: 5.0, 3: 0.2, 4: 4.0, 5: 0.3}
    asked = []

    def told(clients: Sequence[int]) -> np.ndarray:
        asked.append(list(clients))
        return np.array([losses[k] for k in clients])

    for seed in range(20):
        cohort = PowerOfChoice(3).draw(pool(seed=seed, losses=told)).tolist()
        assert len(asked[-1]) == 3
        assert cohort == sorted(asked[-1], key=lambda k: -losses[k])[:2]
    assert sorted(PowerOfChoice(99).draw(pool(losses=told)).tolist()) == [1, 4], "at most all of them"
    assert len(PowerOfChoice(1).draw(pool(losses=told))) == 2, "at least a cohort"


@pytest.mark.parametrize("sampling", SPECS.values())
def test_the_same_bits_on_any_number_of_workers(sampling):
    world = "always" if make_sampler(sampling).remembers else None
    one, three = (list(train(toy_plan(sampling=sampling, world=world, workers=w, rounds=5)))[-1] for w in (1, 3))
    assert torch.equal(one.state.weights, three.state.weights)


def test_choice_is_resumed_to_the_same_model(tmp_path):
    plan = toy_plan(sampling="choice:4", rounds=6)
    expected = fedavg.run(plan).summary.model_sha256

    def watch(event):
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedavg.run(plan, tmp_path / "run", watch)
    got = fedavg.resume(tmp_path / "run", task=plan.task, data=toy_data())
    assert got.summary.model_sha256 == expected


def test_candidates_cost_bytes():
    """Five have data, m = 3: with d = 5, two more fetch the model, and five send a loss."""
    plans = [toy_plan(sampling=sampling, rounds=1) for sampling in ("fixed", "choice:5")]
    plain, choice = (next(event for event in train(plan) if isinstance(event, Round)) for plan in plans)
    model = plain.bytes_down // 3
    assert choice.bytes_down == plain.bytes_down + 2 * model
    assert choice.bytes_up == plain.bytes_up + 5 * 8


def test_choice_learns_the_clients_that_are_worst_off():
    """All candidates: the cohort has the highest losses under the weights that the round began with."""
    from fedavg.fleets import LocalFleet

    plan, fleet = toy_plan(sampling="choice:6"), LocalFleet()
    setup = resolve(plan, fleet.open(plan), fleet.test)
    weights = fleet.start(setup)
    try:
        cohort = fleet.draw(1, weights)
    finally:
        fleet.close()
    module = setup.task.build()
    torch.nn.utils.vector_to_parameters(weights, module.parameters())
    with torch.no_grad():
        examples = {k: toy_data().client(k) for k in CLIENTS}
        losses = {k: float(setup.task.loss(module(own.x), own.y)) for k, own in examples.items()}
    assert list(cohort.clients) == sorted(losses, key=lambda k: -losses[k])[:3]


@dataclass(frozen=True)
class Largest(Sampler):
    count: int = 1

    def draw(self, pool):
        return pool.clients[np.argsort(-pool.sizes, kind="stable")[: self.count]]


@dataclass(frozen=True)
class Wrong(Sampler):
    def draw(self, pool):
        return [2, 2]


def test_a_sampler_of_one_s_own():
    plan, clients = toy_plan(sampling=Largest(2)), population_of(toy_data())
    assert sample_cohort(plan, clients, 1) == sample_cohort(plan, clients, 5) == [4, 1]
    assert str(plan.sampling) == f"{__name__}:Largest:2"
    with pytest.raises(PlanError, match=r"Wrong drew \[2, 2\] in round 1; expected clients of the pool, each once"):
        sample_cohort(toy_plan(sampling=Wrong()), clients, 1)


PRIVATE = {"stages": ["clip:1.0", "weigh:equal", "noise:1.0"]}


def test_privacy_is_charged_by_what_a_sampler_declares():
    fixed, poisson, turns = (
        simulation(toy_plan(sampling=name, **PRIVATE))[0].budget for name in ("fixed", "poisson", "turns")
    )
    assert [budget.sampling.name for budget in (fixed, poisson, turns)] == ["fixed", "poisson", "every round"]
    assert turns.entry(3)["epsilon"] == epsilon(EveryRound(), 1.0, 3, turns.delta), "charged in full"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sampling": "weighted", **PRIVATE},
            "sampling: got 'weighted' with noise; expected one whose privacy is known",
        ),
        ({"sampling": Largest(), **PRIVATE}, "sampling: got .*Largest.* with noise"),
        ({"sampling": "choice:4", **PRIVATE}, "noise or localdp with sampling choice or oort"),
        ({"sampling": "choice:4", "secagg": "complete:1:20"}, "secure aggregation with sampling choice or oort"),
        ({"sampling": "choice:0"}, "sampling choice: d is 0; expected at least 1"),
        ({"sampling": "choice"}, "got 'choice'; expected 'choice:D'"),
        ({"sampling": "luck"}, r"sampling: got 'luck'; expected one of fixed, poisson, weighted, turns, choice:D"),
        ({"sampling": Uniform}, r"got the class Uniform; expected an object: Uniform\(...\)"),
    ],
)
def test_what_a_sampler_can_not_do_is_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        simulation(toy_plan(**changes))


def test_the_default_counts_as_it_did():
    assert make_sampler("fixed") == Uniform()
    assert toy_plan(sampling=Uniform()).digest == toy_plan().digest
