import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import train
from fedavg.algorithms.fedbuff import FedBuff, Flight
from fedavg.types import Sum, Work
from toys import line_plan, toy_plan


def last_of(plan):
    *_, last = train(plan)
    return last


@pytest.mark.parametrize("C", [0.5, 1])
def test_without_delay_and_a_buffer_for_all_it_is_fedavg_bit_for_bit(C):
    plain, buffered = (last_of(toy_plan(C=C, algorithm=name)) for name in ("fedavg", "fedbuff:6:spread=0"))
    assert torch.equal(plain.state.weights, buffered.state.weights)
    assert plain.train_loss == buffered.train_loss


def assigned(algorithm, state, round, cohort, seed=0):
    work = Work(round, epochs=1, batch=10, lr=0.1)
    return algorithm.assign(state, work, cohort, np.random.default_rng(seed))


def test_with_twice_the_buffer_at_work_all_are_one_version_behind():
    """All take as long, four are at work, two fill the buffer: from the second step on, those that land are stale."""
    algorithm = FedBuff(buffer=2, spread=0.0)
    state = algorithm.initial(torch.zeros(3))
    state, parts = assigned(algorithm, state, 1, [7, 8, 9, 5])
    assert [(p.cohort, p.scale) for p in parts] == [([7, 8], 1.0)]
    state = algorithm.server_update(state, Sum(torch.ones(3).double(), 1.0, 2), Work(1, 1, 10, 0.1))
    state, parts = assigned(algorithm, state, 2, [1, 9, 2, 3])
    assert [(p.cohort, p.scale) for p in parts] == [([9, 5], pytest.approx(2**-0.5))]
    assert torch.equal(parts[0].shared, torch.zeros(3))
    assert [tuple(row) for row in state.slots["flights"].tolist()] == [(2.0, 1.0, 1.0), (2.0, 2.0, 1.0)]
    assert torch.equal(state.slots["version.1"], torch.ones(3))
    assert "version.0" not in state.slots


def test_a_step_by_hand_with_a_stale_client():
    """On the line, clients one at a time: w moves by each change over its n_k, times 1 / √(1 + τ)."""
    algorithm = FedBuff(buffer=1, spread=0.0)
    state = algorithm.initial(torch.tensor([2.0]))
    state, parts = assigned(algorithm, state, 1, [0, 1])
    state = algorithm.server_update(state, Sum(torch.tensor([-0.6]).double(), 3.0, 1), Work(1, 1, 10, 0.1))
    assert float(state.weights) == pytest.approx(1.8)
    _, parts = assigned(algorithm, state, 2, [0, 1])
    (part,) = parts
    assert (list(part.cohort), float(part.shared), part.scale) == ([1], 2.0, pytest.approx(2**-0.5))


def test_parts_of_a_round_by_hand():
    """The line, both clients always at work, one update a step, all as fast: τ is 0, then always 1.

    Client a lands in round 1; b, started with it, in round 2 from w_0; then a from w_1, b from w_2, ..."""
    from toys import SLOPES

    events = list(train(line_plan(algorithm="fedbuff:1:spread=0", E=1, rounds=5)))
    first = next(k for k in (0, 1) if float(events[1].state.weights) == pytest.approx(2 - 0.1 * SLOPES[k](2)))
    order = [first, 1 - first, first, 1 - first, first]
    w = [2.0, 2 - 0.1 * SLOPES[first](2)]
    for t in range(1, 5):
        given = w[t - 1]
        w.append(w[t] - 2**-0.5 * 0.1 * SLOPES[order[t]](given))
    assert [float(event.state.weights) for event in events] == [pytest.approx(value) for value in w]


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 8), st.floats(0, 1))
def test_laws_of_the_simulation(seed, buffer, at_work, spread):
    """Nobody is at work twice, nobody lands twice in a round, versions in use are kept, time does not run back."""
    algorithm = FedBuff(buffer=buffer, spread=spread)
    state, clock = algorithm.initial(torch.zeros(1)), 0.0
    picks = np.random.default_rng(seed)
    for round in range(1, 8):
        cohort = [int(k) for k in picks.choice(10, at_work, replace=False)]
        state, parts = assigned(algorithm, state, round, cohort, seed=round)
        landed = [k for part in parts for k in part.cohort]
        flights = [Flight(*row) for row in state.slots["flights"].tolist()]
        flying = [flight.client for flight in flights]
        assert len(set(landed)) == len(landed) == min(len(landed), buffer) > 0
        assert len(set(flying)) == len(flying) <= at_work
        assert {f"version.{int(f.version)}" for f in flights} == {n for n in state.slots if n.startswith("version.")}
        assert float(state.slots["clock"]) >= clock
        assert all(0 < part.scale <= 1 for part in parts)
        clock = float(state.slots["clock"])
