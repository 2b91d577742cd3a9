"""Who is charged for what over the network, by hand."""

import json

import pytest

from fedavg.dp.accounting import EveryRound, epsilon, epsilon_of
from fedavg.privacy.ledger import Budget
from fedavg.privacy.served import Attempt, BudgetSpent, Participation, ServedLedger

DONE = Attempt(1, 2, "done", (0, 1, 2), (0, 1))
GIVEN_UP = Attempt(1, 0, "abandoned", (0, 1, 2), (2,))
UNKNOWN = Attempt(1, 1, "abandoned", (0, 3), None)


@pytest.mark.parametrize(
    ("by", "done", "given_up", "unknown"),
    [("model", (0, 1), (), ()), ("sum", (0, 1), (2,), (0, 3)), ("update", (0, 1, 2), (0, 1, 2), (0, 3))],
)
def test_what_an_attempt_releases(by, done, given_up, unknown):
    assert DONE.released(by) == done
    assert GIVEN_UP.released(by) == given_up
    assert UNKNOWN.released(by) == unknown
    assert Attempt(1, 0, "done", (4, 5), ()).released(by) == (4, 5), "updates without names are anybody's"


@pytest.mark.parametrize(("by", "most"), [("model", 1), ("sum", 2), ("update", 1)])
def test_sums_are_charged_by_session_and_updates_by_round(by, most):
    """Client 0 is in a sum that may have been opened and in the committed one; its update is the same in both."""
    spent = Participation(by)
    for attempt in (GIVEN_UP, UNKNOWN, DONE):
        spent.add(attempt)
    assert spent.most == most
    assert spent.after(1, [0]) == (most if by == "update" else most + 1)
    assert spent.after(2, [0]) == most + 1
    assert spent.after(2, [9]) == most, "a client of whom nothing is known yet"


def test_the_file_is_made_from_the_record_and_goes_on_from_it(tmp_path):
    budget = Budget("gaussian, clients", 2.0, EveryRound(), 5, 3, 1e-3, "os", "sum")
    path = tmp_path / "ledger.jsonl"
    ledger = ServedLedger(budget, None, path, [GIVEN_UP, UNKNOWN, Attempt(2, 0, "collecting", (0,), None)])
    ledger.settle(DONE)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["attempt"], row["released"], row["releases"]) for row in rows] == [
        (0, [2], 1), (1, [0, 3], 1), (2, [0, 1], 2),
    ]  # fmt: skip
    assert rows[-1]["epsilon"] == pytest.approx(epsilon(EveryRound(), 2.0, 2, 1e-3))
    assert ledger.releases == 2


def test_an_attempt_that_could_cost_too_much_does_not_begin(tmp_path):
    budget = Budget("gaussian, clients", 2.0, EveryRound(), 5, 3, 1e-3, "os", "sum")
    limit = epsilon(EveryRound(), 2.0, 2, 1e-3)
    ledger = ServedLedger(budget, limit, tmp_path / "ledger.jsonl", [DONE])
    ledger.check(2, [0])
    ledger.settle(Attempt(2, 0, "done", (0,), (0,)))
    ledger.check(3, [1])
    with pytest.raises(BudgetSpent, match="another attempt at round 3 could cost more than epsilon"):
        ledger.check(3, [0, 1])


def test_releases_of_several_runs_compose():
    assert epsilon_of({}, 1e-5) == 0
    assert epsilon_of({3.0: 4}, 1e-5) == pytest.approx(epsilon(EveryRound(), 3.0, 4, 1e-5))
    both = epsilon_of({3.0: 4, 1.5: 1}, 1e-5)  # four with 3 are as much as one with 1.5
    assert both == pytest.approx(epsilon(EveryRound(), 1.5, 2, 1e-5))
