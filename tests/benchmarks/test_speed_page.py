"""The page of speed says what the record says, and judges it."""

import pytest

from musts import MUSTS, Figure, Must, estimate_rows, memory_rows
from speed_page import grouped, must_rows, page, refreshed


def turn(workload, number, ours, **others):
    runs = {name.replace("_", " "): {"s_per_round": value} for name, value in others.items()}
    ran = {"s_per_round": ours, "startup_s": 2.0, "peak_rss_mb": 900.0, "peak_pss_mb": 300.0, "early_ratio": 1.1}
    return {"workload": workload, "turn": number, "date": "2026-11-18", "machine": "2 cores", "fedavg": ran, **runs}


def test_ratios_are_taken_within_a_turn_and_then_their_median():
    """2, 3 and 10: the median is 3, where the ratio of the medians would be 4."""
    turns = grouped([turn("W5", 0, 1.0, plain=2.0), turn("W5", 1, 2.0, plain=6.0), turn("W5", 2, 1.0, plain=10.0)])
    must = Must("", Figure("W5", "plain"), Figure("W5"), "at least", 3.0)
    assert must.measured(turns) == 3.0
    assert must.holds(3.0)
    assert not must.holds(2.99)


def test_a_workload_is_held_against_another_one_of_the_same_turn():
    turns = grouped([turn("W1", 0, 1.0), turn("W1", 1, 10.0), turn("W8", 0, 1.1), turn("W8", 1, 13.0)])
    must = Must("", Figure("W8"), Figure("W1"), "at most", 1.2)
    assert must.measured(turns) == pytest.approx((1.1 + 1.3) / 2)
    assert must.holds(1.2)
    assert not must.holds(1.21)


def test_a_must_that_nobody_has_measured_is_neither_reached_nor_missed():
    rows = must_rows(grouped([turn("W5", 0, 1.0, plain=1.9)]), None, None)
    verdicts = {what: verdict for what, _, _, verdict in rows}
    assert verdicts["W5: plain PyTorch takes"] == "**missed**"
    assert verdicts["W6: plain PyTorch takes"] == "–"
    assert verdicts["W5: rounds 2 to 10 over warm"] == "reached"


def test_the_musts_cover_every_workload():
    assert {must.above.workload for must in MUSTS} == {f"W{n}" for n in range(1, 11)}


def test_memory_and_predictions_are_judged_from_their_records():
    trees = [{"start_method": "fork", "workers": n, "peak_mb": mb} for n, mb in ((1, 300), (2, 340), (3, 410))]
    crowds = [{"clients": 1_000, "peak_mb": 300}, {"clients": 100_000, "peak_mb": 310}]
    long = [{"rounds": 5000, "recorded": False, "growth_mb": [1.0, 0.2]}]
    rows = memory_rows({"process_trees": trees, "clients": crowds, "long_runs": long})
    assert [holds for *_, holds in rows] == [True, False, True, True]
    predicted = [{"workload": f"W{n}", "ratio": 1.0, "ratio_mb": 1.31 if n == 4 else 1.0} for n in range(1, 11)]
    assert [holds for *_, holds in estimate_rows({"rows": predicted})] == [True, False]


def test_the_page_names_what_a_framework_could_not_run():
    failed = {**turn("W10", 0, 1.0, fedjax=4.0), "flwr": {"failed": "'DIR/flwr' did not end\nwithin 240 s"}}
    shown = page(grouped([failed]), None, None)
    assert "| W10 | 1.0000 | 4.000 (4.0) | – | – |" in shown
    assert "- Flower (Ray, 2 actors) on W10: 'DIR/flwr' did not end within 240 s" in shown


def test_rows_of_other_pages_get_the_figures_of_the_record():
    text = "| W1: 2NN, B=10 | 0.066 | 2.3 x | 3.1 x | 6.3 x |\n| W2: 2NN, B=∞ | 0.049 | 1.2 x | 1.1 x | 4.2 x |\n"
    new = refreshed(text, grouped([turn("W1", 0, 0.05, fedjax=0.2, pfl=0.15, flwr=0.5)]))
    assert new.splitlines() == ["| W1: 2NN, B=10 | 0.05 | 4.0 x | 3.0 x | 10.0 x |", text.splitlines()[1]]


def test_what_only_the_first_turn_has_is_held_against_that_turn():
    """Flower takes 4 x in the turn that it is in; the median of ours over both turns would say 2.7 x."""
    shown = page(grouped([turn("W1", 0, 1.0, flwr=4.0), turn("W1", 1, 2.0)]), None, None)
    assert "| W1 | 1.5000 | – | – | 4.000 (4.0) |" in shown
