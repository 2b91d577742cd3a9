"""The neighbour graph: the published parameters, exact tails, and the shape of the ring."""

from fractions import Fraction
from itertools import combinations
from math import comb, exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.secagg import TermsError, graph
from fedavg.secagg.graph import complete, neighbours, sparse


@pytest.mark.parametrize(
    ("clients", "adversaries", "dropout", "degree", "threshold"),
    [(100, 0.05, 0.33, 28, 6), (1000, 0.05, 0.33, 72, 24), (1000, 0.05, 0.05, 30, 17)],
)
def test_known_answers_for_a_curious_server(clients, adversaries, dropout, degree, threshold):
    topology = sparse(clients, adversaries, dropout)
    assert (topology.degree, topology.threshold) == (degree, threshold)


def exact_tail(population, marked, draws, at_least):
    ways = sum(comb(marked, x) * comb(population - marked, draws - x) for x in range(at_least, draws + 1))
    return Fraction(ways, comb(population, draws))


@pytest.mark.parametrize(
    ("clients", "adversaries", "dropout"), [(100, 0.05, 0.33), (1000, 0.05, 0.05), (300, 0.1, 0.2)]
)
def test_the_parameters_keep_their_promise_in_exact_arithmetic(clients, adversaries, dropout):
    topology = sparse(clients, adversaries, dropout)
    k, t = topology.degree, topology.threshold
    colluding, surviving = round(clients * adversaries), clients - round(clients * dropout)
    assert clients * exact_tail(clients, colluding, k, t) <= Fraction(1, 2**41)
    assert clients * exact_tail(clients, colluding, k, t - 1) > Fraction(1, 2**41)  # t - 1 would not do
    assert clients * (1 - exact_tail(clients, surviving, k, t)) < Fraction(1, 2**20)


def test_an_active_server_needs_two_overlapping_majorities():
    curious, active = sparse(1000, 0.05, 0.05), sparse(1000, 0.05, 0.05, active=True)
    assert active.degree > curious.degree
    reached = next(
        t for t in range(active.degree) if 1000 * exact_tail(1000, 50, active.degree, t) <= Fraction(1, 2**41)
    )
    # Both secrets of a client need 2 t shares from degree + 1 holders, of which fewer than `reached` give two.
    assert 2 * active.threshold > active.degree + 1 + reached - 1


def connected(links, removed):
    left = set(links) - set(removed)
    seen, todo = set(), [min(left)]
    while todo:
        node = todo.pop()
        seen.add(node)
        todo += [peer for peer in links[node] if peer in left - seen]
    return seen == left


def test_the_bound_on_disconnection_holds_in_full_enumeration():
    links = neighbours(range(12), 4)
    cuts = sum(not connected(links, removed) for removed in combinations(range(12), 6))
    assert 0 < cuts / comb(12, 6) <= exp(graph._log_disconnected(12, 4, 6))
    assert all(
        connected(links, removed) for removed in combinations(range(12), 3)
    )  # fewer than the degree never cut it


@given(st.integers(2, 60), st.integers(1, 10), st.randoms(use_true_random=False))
def test_neighbours_are_mutual_and_as_many_as_said(clients, half, random):
    order = random.sample(range(1000), clients)
    links = neighbours(order, 2 * half)
    assert set(links) == set(order)
    for client, peers in links.items():
        assert list(peers) == sorted(set(peers) - {client})
        assert len(peers) == min(2 * half, clients - 1)
        assert all(client in links[peer] for peer in peers)


@pytest.mark.parametrize(("clients", "threshold"), [(2, 2), (3, 3), (4, 3), (9, 7), (10, 7), (100, 67)])
def test_a_complete_graph_asks_for_more_than_two_thirds(clients, threshold):
    topology = complete(clients)
    assert (topology.degree, topology.threshold, topology.minimum) == (clients - 1, threshold, threshold)


def test_half_of_the_clients_or_one_client_are_refused():
    assert complete(10, 6).threshold == 6
    for threshold in (0, 1, 5, 11):
        with pytest.raises(TermsError, match="more than half"):
            complete(10, threshold)
    with pytest.raises(TermsError, match="at least 2"):
        complete(1)


def test_rates_that_no_sparse_graph_bears_are_refused():
    with pytest.raises(TermsError, match="use the complete graph"):
        sparse(10, 0.4, 0.4)
    for rates in ((-0.1, 0.1), (0.5, 0.5), (0.1, 1.0), (float("nan"), 0.1)):
        with pytest.raises(TermsError, match="rates"):
            sparse(100, *rates)
