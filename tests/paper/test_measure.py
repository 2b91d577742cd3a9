import pytest
from paper_toys import measured, record

from fedavg.campaign.records import ABANDONED, Records
from fedavg.paper.cells import CELLS, first_guess
from fedavg.paper.choose import choose
from fedavg.paper.measure import MEASURED, NOT_RUN, RUNNING, middle, needs, result_of

(CELL,) = choose([c for c in CELLS if c.table == 4], ["partition=iid,E=1,B=10"])
(SAME,) = choose([c for c in CELLS if c.table == 1], ["model=2nn,partition=iid,C=0.1,B=10"])


@pytest.fixture
def store(tmp_path):
    return Records(tmp_path)


def put(store, *made):
    for one in made:
        store.put(one)


def test_a_cell_without_records(store):
    assert result_of(CELL, store).status == NOT_RUN
    assert result_of(CELL, store, frozenset({CELL.setting.key})).status == RUNNING
    wanted = needs(CELL, store)
    assert [need.plan.lr for need in wanted] == [0.215, 0.464, 0.1]
    assert {(need.cap, need.target, need.stopped) for need in wanted} == {(12, 0.97, "abandoned")}
    assert {need.reason for need in wanted} == {"a stage of the search ended, and rates that trail are not run on"}


def test_a_measured_cell_and_its_twin_in_another_table(store):
    put(store, *measured(CELL))
    for cell in (CELL, SAME):
        result = result_of(cell, store)
        assert (result.status, result.ours, result.eta, result.inside) == (MEASURED, pytest.approx(2.5), 0.215, True)
        assert (result.seeds, result.date, result.rounds_run) == ((0,), "2026-01-02", 3)
        assert result.ratio == pytest.approx(2.5 / cell.paper)
        assert needs(cell, store) == []


def test_the_cap_falls_to_the_best_rate(store):
    put(store, record(CELL, 0.215, [0.90, 0.96, 0.98]))
    wanted = needs(CELL, store)
    assert [(need.plan.lr, need.cap, need.stopped) for need in wanted] == [(0.464, 3, ABANDONED), (0.1, 3, ABANDONED)]
    assert wanted[0].reason == "lr 0.215 reached 0.97 by then"


def test_other_seeds_run_at_the_chosen_rate(store):
    put(store, *measured(CELL))
    assert [(n.plan.lr, n.plan.seed, n.cap) for n in needs(CELL, store, seeds=3)] == [(0.215, 1, 276), (0.215, 2, 276)]
    put(store, record(CELL, 0.215, [0.90, 0.97], seed=1), record(CELL, 0.215, [0.9], seed=2))
    assert [n.plan.seed for n in needs(CELL, store, seeds=3)] == [2], "a run that was broken off is gone on with"
    put(store, record(CELL, 0.215, [0.9, 0.9, 0.9, 0.98], seed=2))
    result = result_of(CELL, store)
    assert result.seeds == (0, 1, 2)
    assert result.values == pytest.approx((2.5, 2.0, 3.875))
    assert result.ours == pytest.approx(2.5)


def test_a_target_that_no_rate_reaches(store):
    flat = [0.95] * 276
    put(store, record(CELL, 0.215, flat), record(CELL, 0.1, [0.9] * 276), record(CELL, 0.464, [0.94] * 276))
    result = result_of(CELL, store)
    assert (result.status, result.ours, result.best_accuracy, result.rounds_run) == (MEASURED, None, 0.95, 276)
    assert needs(CELL, store, seeds=3) == []


def test_a_search_starts_where_a_related_one_ended(store):
    (other,) = choose([c for c in CELLS if c.table == 1], ["model=2nn,partition=iid,C=0.2,B=10"])
    assert middle(other.setting, store) == first_guess(other.setting) == -4
    put(store, record(CELL, 0.1, [0.98]), record(CELL, 0.215, [0.96]))
    assert middle(other.setting, store) == -6
    (non_iid,) = choose([c for c in CELLS if c.table == 4], ["partition=non-iid,E=1,B=50"])
    assert middle(non_iid.setting, store) == first_guess(non_iid.setting)


def test_rates_off_the_grid_are_not_part_of_a_search(store):
    put(store, record(CELL, 0.2, [0.98]))
    assert [need.plan.lr for need in needs(CELL, store)] == [0.215, 0.464, 0.1]
