"""Samplers that look back at earlier rounds: hand-computed worths and odds, and what is remembered."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.errors import PlanError
from fedavg.samplers import Corrected, Oort, Pool, make_sampler
from fedavg.samplers.memory import CohortSeen, Memory, from_slots, learned, to_slots

CLIENTS = np.arange(6)
SIZES = np.array([10, 20, 10, 10, 10, 10])


def pool(memory, size=2, round=9, seed=0):
    rng = np.random.default_rng(seed)
    return Pool(round, 0, size, CLIENTS, SIZES, rng, lambda asked: 1 / 0, memory)


def seen(round, there, asked, reported, losses=None, seconds=None):
    n = len(asked)
    mask = np.zeros(6, bool)
    mask[there] = True
    return CohortSeen(round, mask, np.array(asked, int), np.isin(asked, reported), np.array(losses or [np.nan] * n),
                np.array(seconds or [1.0] * n))  # fmt: skip


def after(*rounds):
    memory = Memory.of_nothing(6)
    for each in rounds:
        memory = learned(memory, each)
    return memory


def test_what_is_remembered():
    memory = after(
        seen(1, [0, 1, 2], [0, 1], [1], [0.5, 0.7], [3.0, 4.0]), seen(2, [1, 2], [2, 1], [2, 1], [0.1, 0.2], [5.0, 6.0])
    )
    assert (memory.rounds, memory.there.tolist()) == (2, [1, 2, 2, 0, 0, 0])
    assert (memory.asked.tolist(), memory.reported.tolist()) == ([1, 2, 1, 0, 0, 0], [0, 2, 1, 0, 0, 0])
    assert (memory.last.tolist(), memory.seconds[1:3].tolist()) == ([0, 2, 2, 0, 0, 0], [6.0, 5.0])
    assert memory.loss[1:3].tolist() == pytest.approx([0.2, 0.1])
    assert np.isnan(memory.loss[[0, 3]]).all(), "who did not report told nothing"
    assert memory.presence.tolist() == [0.5, 0.75, 0.75, 0.25, 0.25, 0.25]


def test_what_is_remembered_survives_a_checkpoint():
    memory = after(seen(1, [0, 1, 2], [0, 1], [1], [0.5, 0.7], [3.0, 4.0]))
    slots = {name: tensor.clone() for name, tensor in to_slots(memory).items()}
    again = from_slots(slots)
    assert all(isinstance(tensor, torch.Tensor) for tensor in slots.values())
    for name in ("there", "asked", "reported", "last", "loss", "seconds"):
        assert np.array_equal(getattr(memory, name), getattr(again, name), equal_nan=True)
    assert again.rounds == 1


def test_the_odds_of_those_who_are_seldom_there_are_higher():
    """Client 0 was there in 9 of 9 rounds, (9 + 1) / (9 + 2); the others in none, 1 / 11: ten times the odds."""
    memory = after(*(seen(round, [0], [0], [0]) for round in range(1, 10)))
    draws = np.bincount(
        [int(Corrected().draw(pool(memory, size=1, seed=seed))[0]) for seed in range(6000)], minlength=6
    )
    odds = np.array([1.1, 11, 11, 11, 11, 11])
    expected = 6000 * odds / odds.sum()
    assert (np.abs(draws - expected) < 5 * np.sqrt(expected)).all()
    capped = np.bincount([int(Corrected(2).draw(pool(memory, 1, seed=seed))[0]) for seed in range(6000)], minlength=6)
    assert capped[0] / 6000 == pytest.approx(1.1 / (1.1 + 5 * 2), abs=0.02)


def test_what_a_client_is_worth_to_oort():
    """Round 10, T = the 0.5 quantile of 1, 2, 4 s = 2 s: client 2 takes twice as long, so a quarter with penalty 2.

    n_k times the loss: 10, 20, 10; the 95th percentile by linear interpolation is 19.
    """
    memory = after(seen(5, [0, 1, 2], [0, 1, 2], [0, 1, 2], [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]))
    got = Oort(pace=0.5).worth(memory, 10, np.array([0, 1, 2]), np.array([10, 20, 10]))
    bonus = np.sqrt(0.1 * np.log(10) / 5)
    assert got.tolist() == pytest.approx([10 / 19 + bonus, 1 + bonus, (10 / 19 + bonus) / 4])


def test_oort_tries_new_clients_and_comes_back_to_the_best():
    memory = after(seen(1, CLIENTS, [0, 1, 2, 3], [0, 1, 2, 3], [0.1, 5.0, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0]))
    only_new = [set(Oort(explore=1.0).draw(pool(memory, 2, seed=seed)).tolist()) for seed in range(10)]
    assert all(drawn == {4, 5} for drawn in only_new)
    best = [Oort(explore=0.0).draw(pool(memory, 1, seed=seed)).tolist() for seed in range(10)]
    assert all(drawn == [1] for drawn in best)
    everyone = sorted(Oort().draw(pool(memory, 6)).tolist())
    assert everyone == [0, 1, 2, 3, 4, 5], "as many as there are, whoever is new"


@given(st.integers(1, 6), st.integers(0, 50), st.floats(0, 1))
def test_oort_draws_as_many_as_asked_each_once(size, seed, explore):
    memory = after(seen(1, CLIENTS, [0, 1, 2], [0, 2], [0.1, 5.0, 0.0]))
    drawn = Oort(explore=explore).draw(pool(memory, size, seed=seed)).tolist()
    assert len(set(drawn)) == len(drawn) == size


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("corrected:0.5", "sampling corrected: most is 0.5; expected a number from 1"),
        ("oort:explore=2", "sampling oort: explore is 2; expected from 0 to 1"),
    ],
)
def test_a_bad_setting_is_refused(spec, message):
    with pytest.raises(PlanError, match=message):
        make_sampler(spec)


def test_without_a_memory_it_says_what_to_do():
    with pytest.raises(PlanError, match="nothing is remembered of clients here; expected a world"):
        Corrected().draw(pool(None))
