"""When a round has enough and who is asked, as a served plan says it."""

from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import SIZES, tiny_plan

from fedavg import PlanError
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.rounds import Rules
from fedavg.programs.servable import Address, Options, OwnData, by_closing, check_options, own_data, resolve_served
from fedavg.world import make_closing

LISTEN = Address("127.0.0.1", 0)


def settled(closing, data=None, **options):
    plan = tiny_plan(clients=len(SIZES), closing=closing)
    return by_closing(plan, data or own_data(plan), Options(LISTEN, Path("run"), **options))


@pytest.mark.parametrize(
    ("closing", "rules"),
    [
        ("all", Rules()),
        ("all:1.5", Rules(600.0, 1.5, 1e-9)),
        ("deadline:30:1.3:0.4", Rules(30.0, 1.3, 0.4)),
        ("quorum:0.7:deadline=90", Rules(90.0, 1.0, 0.5, 0.7)),
    ],
)
def test_a_plan_s_closing_becomes_the_rules_of_its_server(closing, rules):
    assert settled(closing).rules == rules
    assert settled(closing).minimum is None


@given(st.integers(1, 200), st.floats(0.5, 1), st.floats(1, 3), st.floats(0, 0.5))
def test_a_server_wants_asks_and_needs_as_many_as_a_simulated_one(wanted, share, over, minimum):
    closing = make_closing(f"quorum:{share}:{over}:minimum={minimum}")
    rules = settled(str(closing)).rules
    assert rules.invited(wanted) == closing.asked(wanted)
    assert rules.enough(wanted) == closing.enough(wanted)
    assert rules.minimum(wanted) == max(closing.least(wanted), ceil(round(wanted * 1e-9, 9)))


def test_a_share_of_a_cohort_that_must_be_there_is_a_number_of_clients():
    """C = 0.5 of 8 clients, asked 1.5 times: 6, of which half must be there."""
    assert settled("all:1.5:needs=0.5").minimum == 3


@pytest.mark.parametrize(
    ("closing", "options", "message"),
    [
        ("deadline:30", {"rules": Rules(60.0)}, "in the plan, and --deadline, --over-selection or --quorum"),
        ("all:needs=0.5", {"minimum": 3}, "--min-clients: got 3, and closing 'all:needs=0.5'"),
        ("all:needs=0.5", {"data": OwnData(None, None)}, "share of an unknown number; expected `clients`"),
    ],
)
def test_what_is_said_twice_or_can_not_be_known_is_refused(closing, options, message):
    with pytest.raises(PlanError, match=message):
        settled(closing, **options)


@pytest.mark.parametrize(
    ("changes", "guards", "message"),
    [
        ({"sampling": "choice:4"}, Guards(), "sampling: got 'choice:4'; clients that come and go"),
        (
            {"sampling": "poisson"},
            Guards(),
            "cannot be sampled that way: expected 'fixed', 'weighted', 'turns', 'corr",
        ),
        ({"sampling": "oort"}, Guards(anonymous=True), "--anonymous: with sampling 'oort'"),
        ({"world": "always"}, Guards(), "world: got 'always'; real devices come and go"),
        ({"closing": "quorum:0.7", "algorithm": "fedbuff:3"}, Guards(), "whose rounds end when its buffer is full"),
        ({"closing": "quorum:0.7", "secagg": "complete:4:20"}, Guards(), "the phases of a session"),
    ],
)
def test_what_real_devices_can_not_do_is_refused(changes, guards, message):
    plan = tiny_plan(clients=len(SIZES), **changes)
    options = Options(LISTEN, Path("run"), guards=guards)
    data = own_data(plan)
    with pytest.raises(PlanError, match=message):
        check_options(plan, options) or by_closing(plan, data, options)


@pytest.mark.parametrize("sampling", ["corrected", "oort"])
def test_samplers_that_look_back_need_no_world_on_real_devices(sampling):
    plan = tiny_plan(clients=len(SIZES), sampling=sampling)
    assert resolve_served(plan, own_data(plan), Rules()).remembers
