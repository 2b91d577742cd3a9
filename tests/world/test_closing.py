"""When a round ends and who counts: every number by hand."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.errors import PlanError
from fedavg.world import CLOSINGS, Deadline, Everyone, Quorum, make_closing
from fedavg.world.closing import Fate, close
from fedavg.world.link import fair_rates, shared

R, L, D = Fate.REPORTED, Fate.LATE, Fate.DROPPED
NEVER = np.full(5, inf)


def test_all_who_do_not_drop_out_are_waited_for():
    closed = close(Everyone(), 5, 100.0, np.array([110.0, 130, 105, 120, 140]), np.array([inf, 115, inf, inf, 120]))
    assert (closed.at, closed.fates.tolist(), closed.reason) == (120.0, [R, D, R, R, D], "")


def test_the_first_reports_of_too_many_clients_count():
    closed = close(Everyone(over=1.25), 4, 0.0, np.array([9.0, 2, 3, 4, 5]), NEVER)
    assert (closed.at, closed.fates.tolist()) == (5.0, [L, R, R, R, R])


def test_of_reports_that_come_together_the_first_asked_count():
    closed = close(Everyone(over=1.25), 4, 0.0, np.full(5, 7.0), NEVER)
    assert (closed.at, closed.fates.tolist()) == (7.0, [R, R, R, R, L])


def test_a_deadline_cuts_off_who_is_slow():
    closed = close(Deadline(4.0), 5, 10.0, np.array([11.0, 12, 13, 14, 15]), np.array([inf, inf, inf, inf, 12.5]))
    assert (closed.at, closed.fates.tolist(), closed.reason) == (14.0, [R, R, R, R, D], "")


def test_below_the_minimum_a_round_is_abandoned_and_says_why():
    closed = close(Deadline(2.0), 5, 0.0, np.array([1.0, 2, 3, 4, 5]), np.array([inf, inf, inf, inf, 1.5]))
    assert closed.fates.tolist() == [R, R, L, L, D]
    assert closed.reason == "2 of 5 clients reported in time and 1 dropped out; at least 3 are needed"


def test_a_quorum_ends_a_round_early():
    closed = close(Quorum(0.6), 5, 0.0, np.array([5.0, 1, 2, 3, 4]), NEVER)
    assert (closed.at, closed.fates.tolist()) == (3.0, [L, R, R, R, L])


def test_nobody_left_to_wait_for_ends_a_round():
    closed = close(Everyone(), 5, 3.0, np.full(5, 10.0), np.full(5, 4.0))
    assert (closed.at, closed.fates.tolist()) == (4.0, [D] * 5)
    assert closed.reason.startswith("0 of 5 clients reported")


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=30), st.sampled_from(range(6)))
def test_a_round_never_counts_more_than_it_wants_nor_anyone_after_its_end(times, rule):
    rules = [Everyone(), Everyone(over=2.0), Deadline(7.0), Deadline(7.0, over=1.5), Quorum(0.5), Quorum(0.7, over=1.2)]
    closing = rules[rule]
    ends, lost = np.array(times, float).T
    wanted = max(w for w in range(1, len(ends) + 1) if w == 1 or closing.asked(w) <= len(ends))
    closed = close(closing, wanted, 0.0, ends, lost)
    counted = closed.reported
    assert counted.sum() <= closing.enough(wanted)
    assert (ends[counted] <= closed.at).all()
    assert (ends[counted] <= lost[counted]).all()
    assert closed.at <= closing.deadline
    assert bool(closed.reason) == (counted.sum() < closing.least(wanted))


@pytest.mark.parametrize("spec", ["all", "deadline:60", "quorum:0.7:1.3:60.0:0.4", "all:1.3:needs=0.5"])
def test_its_text_reads_back(spec):
    assert str(make_closing(spec)) in (spec, spec.replace(":60", ":60.0"))
    assert make_closing(str(make_closing(spec))) == make_closing(spec)


def test_every_closing_is_tried():
    assert set(CLOSINGS) == {"all", "deadline", "quorum"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("deadline:0", "closing deadline: deadline is 0; expected seconds above 0"),
        ("all:0.5", "closing all: over is 0.5; expected a factor from 1 to 10"),
        ("quorum:1.5", "closing quorum: share is 1.5; expected a share above 0 and up to 1"),
        ("quorum:0.4", "got share 0.4 and minimum 0.5; expected a minimum of at most the share"),
        ("soon", "closing: got 'soon'; expected one of all"),
    ],
)
def test_what_can_not_be_is_refused(spec, message):
    with pytest.raises(PlanError, match=message):
        make_closing(spec)


def test_a_line_is_shared_fairly():
    """Two want 10 of 12, one is content with 1: (12 - 1) / 2 each."""
    assert fair_rates(np.array([10.0, 1.0, 10.0]), 12.0).tolist() == [5.5, 1.0, 5.5]
    assert fair_rates(np.array([10.0, 1.0]), 12.0).tolist() == [10.0, 1.0]


def test_transfers_slow_each_other_down_only_while_they_overlap():
    """Alone at 10 B/s from 0 to 2 (20 of 40 B done), at 5 B/s each until the second has its 10 B, then alone again."""
    ends = shared(np.array([0.0, 2.0]), np.array([40.0, 10.0]), np.array([10.0, 10.0]), 10.0)
    assert ends.tolist() == [5.0, 4.0]
    assert shared(np.array([0.0, 2.0]), np.array([40.0, 10.0]), np.array([10.0, 10.0]), inf).tolist() == [4.0, 3.0]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_shared_line_carries_all_bytes_at_its_capacity_at_most(transfers):
    begin, size, own = np.array(transfers, float).T
    ends = shared(begin, size, own, 10.0)
    assert (ends >= begin + size / own - 1e-6).all(), "nobody is faster than its own line"
    assert ends.max() >= begin.min() + size.sum() / 10.0 - 1e-6, "nor all together faster than the server's"
