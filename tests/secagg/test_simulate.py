"""Whole sessions: the secure sum is the plain sum of the survivors, whoever drops out when, or there is none at all."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parties import make_identities, plain_sum, random_ring, small_terms

from fedavg import seeds
from fedavg.secagg import BadMessage, SessionAbandoned, SessionStep, answer, simulate
from fedavg.secagg.messages import MaskedInput

PHASES = [
    SessionStep.KEYS,
    SessionStep.SHARES,
    SessionStep.INPUTS,
    SessionStep.ENDORSEMENTS,
    SessionStep.UNMASKING,
]


def run(terms, drops, invited=None):
    invited = range(terms.encoding.clients) if invited is None else invited
    identities = make_identities(invited) if terms.signed else None
    return simulate(terms, invited, lambda client: random_ring(terms, client), drops, identities)


def check(terms, drops, invited=None):
    """The exact sum of those whose input arrived, or, below the threshold, a session that says so."""
    invited = range(terms.encoding.clients) if invited is None else invited
    there = {phase: [c for c in invited if drops.get(c, SessionStep.OVER) > phase] for phase in PHASES}
    topology = terms.topology
    enough = (
        len(there[SessionStep.INPUTS]) >= topology.minimum and len(there[SessionStep.UNMASKING]) >= topology.threshold
    )
    if enough:
        aggregate = run(terms, drops, invited).aggregate
        assert list(aggregate.survivors) == there[SessionStep.INPUTS]
        assert set(aggregate.dropped) == set(invited) - set(there[SessionStep.INPUTS])
        assert np.array_equal(aggregate.ring, plain_sum(terms, there[SessionStep.INPUTS]))
    else:
        with pytest.raises(SessionAbandoned, match="expected") as caught:
            run(terms, drops, invited)
        assert caught.value.reason == "too-few"


@st.composite
def dropouts(draw, clients):
    """Who drops out, and in which phase; often at the edge of the threshold."""
    count = draw(st.one_of(st.integers(0, clients), st.integers(max(clients // 3 - 2, 0), clients // 3 + 1)))
    lost = draw(st.permutations(range(clients)))[: min(count, clients)]
    return {client: draw(st.sampled_from(PHASES)) for client in lost}


@settings(max_examples=50)
@given(st.data(), st.integers(2, 16), st.booleans(), st.sampled_from([16, 32, 64]))
def test_small_cohorts_with_any_dropouts(data, clients, signed, bits):
    threshold = data.draw(st.one_of(st.none(), st.integers(clients // 2 + 1, clients)))
    terms = small_terms(clients, bits=bits, signed=signed, threshold=threshold)
    check(terms, data.draw(dropouts(clients)))


def drawn_dropouts(clients, rate, seed):
    """Every client drops out with this probability, in any phase."""
    rng = seeds.rng(seed, 0, 0, "dropouts")
    return {client: PHASES[rng.integers(len(PHASES))] for client in range(clients) if rng.random() < rate}


cohorts = given(st.integers(17, 200), st.floats(0, 0.4), st.integers(0, 10**6))


@settings(max_examples=1)
@example(200, 0.2, 1)
@cohorts
def test_cohorts_of_up_to_200(clients, rate, seed):
    check(small_terms(clients), drawn_dropouts(clients, rate, seed))


@pytest.mark.slow
@settings(max_examples=40)
@cohorts
def test_many_cohorts_of_up_to_200(clients, rate, seed):
    check(small_terms(clients), drawn_dropouts(clients, rate, seed))


@settings(max_examples=6)
@given(st.integers(20, 120), st.integers(0, 10**6), st.booleans())
def test_sparse_graphs(clients, seed, signed):
    terms = small_terms(clients, sparse=(0.05, 0.1), signed=signed)
    lost = list(drawn_dropouts(clients, 0.1, seed).items())[: clients // 10]
    check(terms, dict(lost))


@pytest.mark.parametrize("phase", PHASES)
def test_exactly_up_to_the_threshold_in_every_phase(phase):
    terms = small_terms(10, signed=True)  # t = 7
    check(terms, dict.fromkeys(range(3), phase))
    check(terms, dict.fromkeys(range(4), phase))
    with pytest.raises(SessionAbandoned):
        run(terms, dict.fromkeys(range(4), phase))


def test_two_clients_and_any_ids():
    check(small_terms(2), {}, [7, 2**32 - 1])
    check(small_terms(2), {7: SessionStep.UNMASKING}, [7, 2**32 - 1])


def test_real_updates_come_out_as_their_weighted_sum():
    terms = small_terms(30, dimension=1000)
    encoding = terms.encoding
    vectors = {c: seeds.rng(0, 0, c, "update").normal(0, 0.3, 1000).astype(np.float32) for c in range(30)}
    weights = {c: 1 + 3 * c for c in range(30)}
    encoded = {c: encoding.encode(vectors[c], weights[c], {"loss": 1 / (c + 1)}) for c in range(30)}
    drops = {
        0: SessionStep.KEYS,
        5: SessionStep.SHARES,
        9: SessionStep.INPUTS,
        11: SessionStep.INPUTS,
        20: SessionStep.UNMASKING,
    }
    aggregate = simulate(terms, range(30), lambda c: encoded[c].ring, drops).aggregate
    total = encoding.decode(aggregate.ring, len(aggregate.survivors))
    alive = sorted(set(range(30)) - {0, 5, 9, 11})
    plain = sum(weights[c] * np.clip(vectors[c].astype(float), -1, 1) for c in alive)
    assert np.abs(total.vector - plain).max() <= len(alive) * 2.0**-encoding.fraction_bits / 2
    assert total.weight == sum(weights[c] for c in alive)
    assert total.metrics["loss"] == pytest.approx(sum(weights[c] / (c + 1) for c in alive) / total.weight, abs=1e-6)
    assert total.saturated == sum(encoded[c].saturated for c in alive) > 0


def test_costs_are_metered_by_the_clock_that_is_given():
    ticks = iter(range(10**6))
    terms = small_terms(3, dimension=1000)
    outcome = simulate(terms, range(3), lambda c: random_ring(terms, c), clock=lambda: next(ticks))
    assert [costs.seconds for costs in outcome.clients.values()] == [4, 4, 4]  # one tick a message
    assert outcome.server_seconds == 3 * 4 + 3 + 1
    assert all(4000 < costs.bytes_up < 5000 for costs in outcome.clients.values())
    assert all(0 < costs.bytes_down < 1000 for costs in outcome.clients.values())


def test_a_message_for_the_server_is_not_for_a_client():
    with pytest.raises(BadMessage):
        answer(None, MaskedInput(bytes(16), 0, b""), lambda: None)
