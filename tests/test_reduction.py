"""Reducers and attacks in whole runs: hand-computed rounds, the same bits everywhere, refusals before round 1."""

import logging
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedavg import ArrayData, Attack, Diverged, Examples, Fleet, LocalFleet, Plan, PlanError, Task, train
from fedavg.data.partition import iid
from fedavg.parts import liars_of
from fedavg.robust import REDUCERS
from fedavg.setup import population_of, resolve, simulation
from fedavg.testing import check_attack, check_reducer
from toys import LINE, blobs, toy_plan


def weights(plan):
    *_, last = train(plan)
    return last.state.weights


def lines(*targets):
    """One example for each client, (1, y): ∇F_k(w) = 2 (w - y), and one step of 0.1 from 2 changes w by 0.2 (y - 2)."""
    x, y = torch.ones(len(targets), 1), torch.tensor(targets, dtype=torch.float32)
    return ArrayData("targets", x, y, [np.array([k]) for k in range(len(targets))], Examples(x, y))


def line_plan(*targets, **changes):
    values = {"task": LINE, "data": lines(*targets), "C": 1, "E": 1, "B": "inf", "lr": 0.1, "rounds": 1, "workers": 1}
    return Plan(**{**values, **changes})


def test_the_server_adds_what_the_rule_makes_of_the_updates():
    # Changes: -0.2, 0, 0.2 and 20. The plain mean is 5; the median 0.1; without the ends the mean 0.1.
    targets = (1.0, 2.0, 3.0, 102.0)
    assert float(weights(line_plan(*targets))) == pytest.approx(2 + 5)
    assert float(weights(line_plan(*targets, reducer="median"))) == pytest.approx(2.1)
    assert float(weights(line_plan(*targets, reducer="trimmed:1"))) == pytest.approx(2.1)
    clipped = weights(line_plan(*targets, reducer="mean", pre=["clip:1"]))
    assert float(clipped) == pytest.approx(2 + (-0.2 + 0 + 0.2 + 1) / 4)


def test_a_rule_counts_clients_alike_whatever_they_say_of_their_weight():
    x, y = torch.ones(4, 1), torch.tensor([1.0, 3.0, 3.0, 3.0])
    data = ArrayData("two", x, y, [np.array([0]), np.array([1, 2, 3])], Examples(x, y))
    plan = line_plan(0.0, data=data, reducer="mean")
    event = list(train(plan))[-1]
    assert float(event.state.weights) == pytest.approx(2.0)  # -0.2 and 0.2; by n_k it would be 2.1
    assert (event.clients, event.examples) == (2, 4)


def test_liars_that_know_only_their_own_send_a_changed_update():
    plan = line_plan(3.0, 3.0, 3.0, attack="signflip", attackers=[2])
    assert float(weights(plan)) == pytest.approx(2 + 0.2 / 3)
    assert float(weights(replace(plan, attack="scaled:4"))) == pytest.approx(2 + 0.2 * (2 + 4) / 3)
    assert float(weights(replace(plan, attack="freerider"))) == pytest.approx(2 + 0.4 / 3)


def test_liars_that_see_the_honest_updates_forge_theirs():
    # Honest changes 0.2 and 0.4: the lie is -0.3 * 2 = -0.6; with the plain mean and n_k = 1 each, 0 in all.
    plan = line_plan(3.0, 4.0, 99.0, attack="ipm:2", attackers=[2])
    event = list(train(plan))[-1]
    assert float(event.state.weights) == pytest.approx(2.0, abs=1e-6)
    assert (event.clients, event.examples) == (3, 3)
    assert float(weights(replace(plan, reducer="median"))) == pytest.approx(2.2)


def test_a_forged_update_costs_as_many_bytes_as_an_honest_one():
    honest, lying = (
        list(train(line_plan(3.0, 4.0, 5.0, **changes)))[-1]
        for changes in ({}, {"attack": "ipm:0.5", "attackers": [1]})
    )
    assert (honest.bytes_up, honest.bytes_down) == (lying.bytes_up, lying.bytes_down)
    assert lying.cohort["who"]["cosine"][1] == -1


def test_updates_that_are_no_numbers_are_left_out_and_the_rest_is_reduced(caplog):
    caplog.set_level(logging.INFO, "fedavg.run")
    for attack in ("nan", "inf"):
        plan = line_plan(3.0, 4.0, 5.0, 9.0, attack=attack, attackers=[3], reducer="median")
        event = list(train(plan))[-1]
        assert float(event.state.weights) == pytest.approx(2.4)
        assert event.clients == 3
        assert event.cohort["missing"] == {"not finite": 1}
        assert event.cohort["who"]["outcome"] == ["reported", "reported", "reported", "not finite"]
    assert "round 1: the updates of clients [3] are not finite, and are left out" in caplog.text


def test_without_a_reducer_an_update_that_is_no_number_ends_the_run():
    with pytest.raises(Diverged, match="client 1: it lies, and a mean has no defence.*expected a reducer"):
        list(train(line_plan(3.0, 4.0, attack="nan", attackers=[1])))


def test_a_round_with_too_few_updates_for_the_rule_changes_nothing_and_says_why(caplog):
    """With three of seven left out, four are too few to leave out three at each end."""
    plan = line_plan(*range(1, 8), attack="nan", attackers=[0, 1, 2], reducer="trimmed:3", rounds=2)
    events = list(train(plan))
    assert torch.equal(events[0].state.weights, events[-1].state.weights)
    assert events[-1].clients == 0
    assert "round 2 changes nothing: reducer: got 'trimmed:3' for a cohort of 4 clients" in caplog.text


def test_centred_clipping_goes_on_from_the_last_round():
    # Radius 0.1, one step a round. Round 1: changes 0.2, from 0: 0.1. Round 2: from 0.1 by at most 0.1 more.
    plan = line_plan(3.0, 3.0, reducer="centred:0.1", rounds=2)
    first, second = (event.state.weights.item() for event in list(train(plan))[1:])
    assert first == pytest.approx(2.1)
    assert second == pytest.approx(2.1 + 0.2 * 0.9)  # the change is 0.18, within 0.1 of 0.1


@pytest.mark.parametrize("attack", [None, "alie", "labelflip:3", "signflip"])
def test_workers_do_not_change_a_bit(attack):
    changes = {"attack": attack, "attackers": 0.2} if attack else {}
    plan = toy_plan(reducer="trimmed:1", pre=["bucket:1", "nnm:1"], C=1, rounds=3, **changes)
    assert torch.equal(weights(replace(plan, workers=1)), weights(replace(plan, workers=2)))


@pytest.mark.parametrize("attack", ["alie", "signflip"])
def test_a_world_in_which_all_are_there_changes_no_bit(attack):
    plan = toy_plan(reducer="trimmed:1", C=1, rounds=2, attack=attack, attackers=0.2)
    assert torch.equal(weights(plan), weights(replace(plan, world="always")))


def test_the_same_seed_draws_the_same_liars_of_those_who_have_data():
    setup, data = simulation(toy_plan(attack="signflip", attackers=0.4))
    assert len(setup.attackers) == 2
    assert all(data.sizes[k] for k in setup.attackers)
    assert setup.attackers == simulation(toy_plan(attack="nan", attackers=0.4))[0].attackers
    drawn = {liars_of(toy_plan(attack="nan", attackers=0.4, seed=seed), population_of(data)) for seed in range(20)}
    assert len(drawn) > 3


def test_the_success_of_a_backdoor_is_a_metric():
    x, y = blobs(300, 1)
    data = ArrayData("many", x, y, iid(y.numpy(), 10, np.random.default_rng(0)), Examples(*blobs(90, 2)))
    plan = toy_plan(data=data, C=1, rounds=15, E=5, attack="backdoor:0:size=5:boost=5", attackers=0.2)
    open_door = list(train(plan))[-1].test
    guarded = list(train(replace(plan, reducer="krum:0.2")))[-1].test
    assert open_door["attack_success"] > 0.7
    assert guarded["attack_success"] < open_door["attack_success"] - 0.3
    assert guarded["accuracy"] > 0.8
    assert "attack_success" not in list(train(replace(plan, attack="signflip")))[-1].test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": ["nnm:0.2"]}, "pre: got 'nnm:0.2' without a reducer"),
        ({"attackers": 0.2}, "attackers: got 0.2 without an attack"),
        ({"attack": "signflip"}, "attack: got 'signflip' without attackers"),
        ({"attack": "signflip", "attackers": 0.01}, "which is none"),
        ({"attack": "signflip", "attackers": [2]}, "client 2, which has no data"),
        ({"attack": "signflip", "attackers": 1.0}, "a share of the clients from 0 to below 1"),
        ({"attack": "signflip", "attackers": "a,b"}, "a share of the clients from 0 to below 1"),
        ({"reducer": "krum:1", "C": 0.5}, "reducer: got 'krum:1' for a cohort of 3 clients; it must withstand 1"),
        ({"reducer": "krum:1", "attack": "nan", "attackers": 0.4}, "attackers: got 2 in a cohort of 5.*stands 1"),
        ({"reducer": "median", "secagg": "complete:4:100"}, "secure aggregation with a reducer"),
        ({"attack": "alie", "attackers": 0.2, "secagg": "complete:4:100"}, "attack that sees the honest updates"),
        ({"attack": "nan", "attackers": 0.2, "secagg": "complete:4:100"}, "attack nan or inf"),
        ({"reducer": "median", "stages": ["clip:1", "weigh:equal", "noise:1"]}, "noise with a reducer"),
        ({"reducer": "median", "stages": ["clip:1:quantile=0.5"]}, "a reducer with clip with a quantile"),
        ({"reducer": "median", "algorithm": "fedbuff:2"}, "an asynchronous algorithm"),
        ({"reducer": "median", "algorithm": "fednova"}, "they trust clients' own numbers"),
        ({"reducer": "midrange"}, "reducer: got 'midrange'; expected one of mean, median, trimmed"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_round_1(changes, message):
    with pytest.raises(PlanError, match=message):
        next(iter(train(toy_plan(**{"C": 1, **changes}))))


def test_an_attack_on_examples_or_on_its_own_update_works_under_masks():
    plan = toy_plan(C=1, rounds=1, attack="signflip", attackers=0.2)
    masked = weights(replace(plan, secagg="complete:4:100"))
    assert torch.allclose(masked, weights(plan), atol=1e-4)


def test_a_backdoor_needs_an_accuracy():
    plan = toy_plan(task=Task("bare", LINE.build, metrics=["loss"]), attack="backdoor", attackers=0.2)
    with pytest.raises(PlanError, match="whose success is an accuracy"):
        resolve(plan, population_of(plan.data), plan.data.test)


class OnlySums(LocalFleet):
    gives_singles = False


def test_a_fleet_that_gives_only_sums_is_refused():
    fleet = OnlySums()
    assert not Fleet.gives_singles
    with pytest.raises(PlanError, match="reducer: got 'median', which must see single updates, and OnlySums"):
        next(iter(train(toy_plan(reducer="median"), fleet)))


def test_a_plan_without_them_has_the_digest_it_had():
    assert Plan(C=0.2, seed=3).digest == "b3efbae703518ceb"
    named = Plan(reducer="trimmed:0.3", pre=["clip:2", "nnm:0.2"], attack="alie", attackers="3, 1")
    assert named.digest != Plan().digest
    assert named.attackers == (1, 3)
    assert 'pre = ["clip:2", "nnm:0.2"]' in named.to_toml()


@pytest.mark.parametrize("name", REDUCERS)
def test_every_reducer_passes_the_kit(name):
    given = {"centred": "centred:1:steps=3", "normbound": "normbound:2"}.get(name, name)
    check_reducer(given, rounds=2)


@pytest.mark.parametrize("step", ["nnm:0.2", "bucket:2", "clip:2", "arc:0.2"])
def test_every_step_passes_the_kit(step):
    check_reducer("median", pre=[step], rounds=2)


@pytest.mark.parametrize("attack", ["nan", "optalie", "labelflip:3", "mimic", "freerider", "minmax"])
def test_attacks_pass_the_kit(attack):
    from fedavg.attacks import make_attack

    check_attack(make_attack(attack))


@dataclass(frozen=True)
class Nothing(Attack):
    """Liars that do not lie; they know all."""

    name = "nothing"


def test_the_kit_finds_an_attack_that_does_nothing():
    with pytest.raises(AssertionError, match="gave the model of a run without"):
        check_attack(Nothing())
