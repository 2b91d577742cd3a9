import json

import pytest
from paper_toys import measured, record
from rich.console import Console

from fedavg.campaign.records import Records
from fedavg.paper import tables
from fedavg.paper.cells import ALL_CELLS, CELLS, with_unit_pixels
from fedavg.paper.choose import choose
from fedavg.paper.measure import results

FOUR = [c for c in CELLS if c.table == 4]
(CELL,) = choose(FOUR, ["partition=iid,E=1,B=10"])
(BASE,) = choose(FOUR, ["partition=iid,E=1,B=inf"])
COSTS = dict.fromkeys(ALL_CELLS, 7200.0)


def shown(store):
    return {result.cell: result for result in results(ALL_CELLS, store)}


@pytest.fixture
def store(tmp_path):
    """One cell measured (2.5 rounds at 0.215), and the row that its speed-up is against (5 rounds at 0.464)."""
    store = Records(tmp_path)
    for made in measured(CELL):
        store.put(made)
    store.put(record(BASE, 0.464, [0.5, 0.6, 0.7, 0.8, 0.97]))
    store.put(record(BASE, 0.215, [0.5] * 5))
    store.put(record(BASE, 1.0, [0.5] * 5))
    return store


@pytest.fixture
def both_ways(store):
    """And the same two cells with pixels in [0, 1]: 2 rounds, and 3 for the row that its speed-up is against."""
    unit, base = with_unit_pixels(CELL), with_unit_pixels(BASE)
    store.put(record(unit, 0.215, [0.9, 0.97]))
    store.put(record(base, 0.464, [0.5, 0.6, 0.97]))
    for cell, eta in ((unit, 0.1), (unit, 0.464), (base, 0.215), (base, 1.0)):
        store.put(record(cell, eta, [0.5] * 3))
    return store


def test_markdown_of_a_table_with_measured_cells(store):
    by_cell = shown(store)
    text = tables.markdown(4, [by_cell[c] for c in FOUR], by_cell, COSTS)
    assert "| 2NN FedAvg | 1 | 10 | 60 | **2.5 (2.0x)** / 92 (16.0x); not run | not run / 831 (2.2x); not run |" in text
    assert "| 2NN FedSGD | 1 | ∞ | 1 | **5.0** / 1468; not run | not run / 1817; not run |" in text
    assert "| 2NN FedAvg | 20 | 10 | 1200 | not run / 32 (45.9x); not run | not run / 738 (2.5x); not run |" in text
    values = "92 | 2.5 | not run | 0.03 | 16.0x | 2.0x | 0.215 | 0.1, 0.215, 0.464 | 0 | 2026-01-02"
    assert f"| partition=iid,E=1,B=10 | {values} | `fedavg paper table4 --only partition=iid,E=1,B=10` |" in text
    assert "- `fedavg paper table4 --only partition=non-iid,E=1,B=10` (about 2.0 h on one core)" in text
    assert text.count("about 2.0 h") == 16


def test_the_twin_in_table_1_is_measured_too(store):
    by_cell = shown(store)
    text = tables.markdown(1, [by_cell[c] for c in CELLS if c.table == 1], by_cell, COSTS)
    assert "| 2NN | 0.1 | **5.0** / 1474 (1.0x); not run | **2.5** / 87 (3.6x); not run |" in text
    assert "| 2NN | 0.5 | not run / –; not run |" in text


def test_the_terminal_has_it_too(store):
    by_cell = shown(store)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(tables.terminal_table(4, [by_cell[c] for c in FOUR], by_cell))
    text = capture.get()
    assert "Table 4: rounds to 97 %" in text
    assert "ours 2.5 (2.0x)" in text
    assert "lr 0.215, 0.03 of the paper's" in text


def test_range_over_seeds_and_not_reached(store):
    store.put(record(CELL, 0.215, [0.9, 0.97], seed=1))
    result = shown(store)[CELL]
    assert tables.ours_text(result) == "2.2 [2.0, 2.5]"
    store.put(record(CELL, 0.215, [0.9] * 276, seed=2))
    assert tables.ours_text(shown(store)[CELL]) == "2.5 [2.0, never]"


def test_a_target_that_was_not_reached(tmp_path):
    store = Records(tmp_path)
    for eta, best in ((0.215, 0.95), (0.1, 0.9), (0.464, 0.94)):
        store.put(record(CELL, eta, [best] * 276))
    assert tables.ours_text(shown(store)[CELL]) == "not reached in 276 rounds (best 95.00%)"


def test_json_of_cells(store):
    by_cell = shown(store)
    one = tables.as_json(by_cell[CELL], by_cell, 100.0)
    json.dumps(one, allow_nan=False)
    assert one | {
        "table": 4, "model": "2nn", "partition": "iid", "C": 0.1, "E": 1, "B": 10, "status": "measured", "paper": 92,
        "ours": 2.5, "eta": 0.215, "speedup_ours": 2.0, "estimated_s": 0.0, "rates_tried": [0.1, 0.215, 0.464],
    } == one | {"ours": pytest.approx(2.5)}  # fmt: skip
    blank = tables.as_json(by_cell[BASE], by_cell, 100.0)
    assert (blank["B"], blank["speedup_ours"], blank["speedup_paper"]) == ("inf", None, None)


def test_the_2nn_is_shown_with_pixels_in_0_to_1_too_but_counted_by_the_centred_ones(both_ways):
    by_cell = shown(both_ways)
    one = tables.as_json(by_cell[CELL], by_cell, 100.0)
    assert (one["ours"], one["ours_unit_pixels"]) == (pytest.approx(2.5), 2.0)
    assert one["ratio"] == pytest.approx(2.5 / 92)
    text = tables.markdown(4, [by_cell[c] for c in FOUR], by_cell, COSTS)
    assert "| **2.5 (2.0x)** / 92 (16.0x); 2.0 (1.5x) |" in text, "each speed-up is against its own pixels"
    assert "| partition=iid,E=1,B=10 | 92 | 2.5 | 2.0 | 0.03 |" in text
    assert "with pixels in [0, 1] stands after the semicolon" in text
    two = [by_cell[c] for c in CELLS if c.table == 2]
    assert "semicolon" not in tables.markdown(2, two, by_cell, COSTS), "the other models are measured in one way"
    (cnn,) = choose([c for c in CELLS if c.table == 2], ["model=cnn,partition=iid,E=1,B=10"])
    assert tables.as_json(by_cell[cnn], by_cell, 1.0)["ours_unit_pixels"] is None


def test_status_counts(both_ways):
    by_cell = shown(both_ways)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(tables.status_table(by_cell, COSTS))
    assert "4 measured, 0 running, 93 not run of 97 cells" in capture.get()
