import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.errors import PlanError
from fedavg.fleets.http.server.rounds import OpenRound, Receipt, RoundPhase, Rules


def a_round(invited=(1, 2, 3, 4), goal=3, minimum=2):
    return OpenRound(7, 0, "m", invited, goal, minimum, deadline=100.0)


def test_how_many_are_invited_and_needed():
    rules = Rules(over_selection=1.3, quorum=0.8)
    assert [rules.invited(goal) for goal in (1, 10, 100)] == [2, 13, 130]
    assert [rules.minimum(goal) for goal in (1, 10, 100)] == [1, 8, 80]
    assert Rules().invited(10) == 10
    assert [Rules(share=0.75).enough(goal) for goal in (1, 4, 10)] == [1, 3, 8]


@pytest.mark.parametrize(
    "bad",
    [
        {"deadline_s": 0},
        {"deadline_s": float("inf")},
        {"over_selection": 0.9},
        {"quorum": 0},
        {"quorum": 1.1},
        {"share": 0.4},
        {"share": 1.1},
    ],
)
def test_bad_rules_are_refused(bad):
    with pytest.raises(PlanError, match="expected"):
        Rules(**bad)


def test_the_goal_closes_the_round():
    r = a_round()
    for client in (1, 3, 4):
        assert r.wants(client)
        assert r.judge(client, 7, 0) is Receipt.ACCEPTED
        r.accept(client)
        assert not r.wants(client)
    assert r.phase is RoundPhase.COMMITTING
    assert r.judge(2, 7, 0) is Receipt.ROUND_CLOSED
    assert r.judge(1, 7, 0) is Receipt.DUPLICATE  # told again that it is in


def test_strangers_and_other_rounds():
    r = a_round()
    assert r.judge(9, 7, 0) is Receipt.NOT_INVITED
    assert r.judge(1, 7, 1) is Receipt.WRONG_ROUND
    assert r.judge(1, 6, 0) is Receipt.WRONG_ROUND
    assert not r.wants(9)


def test_the_deadline_closes_with_a_quorum_and_abandons_without():
    r = a_round()
    r.accept(1)
    r.accept(2)
    r.tick(99.9)
    assert r.phase is RoundPhase.COLLECTING
    r.tick(100.0)
    assert r.phase is RoundPhase.COMMITTING
    r = a_round()
    r.accept(1)
    r.tick(100.0)
    assert r.phase is RoundPhase.ABANDONED
    assert "1 of 3 wanted updates" in r.reason


def test_nobody_waits_for_clients_that_failed():
    r = a_round()
    r.fail(1, now=0)
    r.accept(2)
    r.accept(3)
    assert r.phase is RoundPhase.COLLECTING
    r.fail(4, now=1)
    assert r.phase is RoundPhase.COMMITTING  # two are in, nobody is left
    r = a_round()
    for client in (1, 2, 3):
        r.fail(client, now=0)
    assert r.phase is RoundPhase.ABANDONED  # one left, two needed
    assert "3 of 4 clients failed" in r.reason


def test_a_client_that_failed_and_comes_back_counts_once():
    r = a_round()
    r.fail(1, now=0)
    assert not r.wants(1)
    assert r.judge(1, 7, 0) is Receipt.ACCEPTED
    r.accept(1)
    r.fail(1, now=0)
    assert (r.accepted, r.failed) == ({1}, set())


EVENTS = st.lists(
    st.tuples(st.sampled_from(["upload", "fail", "tick"]), st.integers(0, 7), st.floats(0, 200)), max_size=40
)


@given(EVENTS, st.integers(1, 5))
def test_whatever_happens(events, goal):
    """No update counts twice, no stranger's, never more than the goal; a closed round stays as it is."""
    r = OpenRound(1, 0, "m", range(6), goal, max(1, goal // 2), deadline=100)
    closed = None
    for what, client, now in events:
        before = set(r.accepted)
        if what == "upload" and r.judge(client, 1, 0) is Receipt.ACCEPTED:
            r.accept(client)
            assert r.accepted == before | {client} != before
        elif what == "fail":
            r.fail(client, now)
        elif what == "tick":
            r.tick(now)
        assert r.accepted <= set(range(6))
        assert len(r.accepted) <= goal
        assert not r.accepted & r.failed
        if closed is not None:
            assert (r.phase, r.accepted) == closed
        elif r.phase is not RoundPhase.COLLECTING:
            closed = (r.phase, set(r.accepted))
            if r.phase is RoundPhase.COMMITTING:
                assert len(r.accepted) >= r.minimum
