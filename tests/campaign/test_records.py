import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_toys import measured, record

from fedavg.campaign import records
from fedavg.campaign.orders import Order, plan_values, write_order
from fedavg.campaign.records import ABANDONED, CAP, DIVERGED, RecordError, Records, absorb, read, thin, to_json
from fedavg.paper.cells import CELLS
from fedavg.runlog.curves import rounds_to_target
from fedavg.runlog.rundir import RunDir

CELL = next(c for c in CELLS if c.name == "table4 partition=iid,E=1,B=inf")


def test_round_trip(tmp_path):
    made = record(CELL, 0.215, [0.9, 0.97123], sample_rounds=(1, 2), sample_loss=(0.5, 0.25), rounds_run=3)
    Records(tmp_path).put(made)
    (path,) = tmp_path.glob("*/*.json")
    assert (path.parent.name, path.stem) == ("mnist-2nn", CELL.plan(0.215).digest)
    assert read(path) == made
    again = Records(tmp_path)
    assert again.find(CELL.plan(0.215)) == made
    assert again.find(CELL.plan(0.1)) is None
    assert again.of(CELL.setting.key) == [made]


def test_a_record_is_strict_json_without_runtime_options():
    document = json.loads(to_json(record(CELL, 0.215, [0.9])), parse_constant=lambda name: pytest.fail(name))
    assert document["plan"]["B"] == "inf"
    assert document["digest"] == CELL.plan(0.215).digest
    assert {"workers", "data_dir", "checkpoint_s"} & document["plan"].keys() == set()


def test_a_record_is_found_by_its_plan_whatever_its_file_is_called(tmp_path):
    Records(tmp_path).put(record(CELL, 0.215, [0.9]))
    (path,) = tmp_path.glob("*/*.json")
    path.rename(path.with_name("of-an-older-version.json"))
    store = Records(tmp_path)
    store.put(record(CELL, 0.215, [0.9, 0.98]))
    assert [p.name for p in tmp_path.glob("*/*.json")] == ["of-an-older-version.json"]
    assert Records(tmp_path).find(CELL.plan(0.215)).rounds_run == 2


def test_a_longer_record_is_not_replaced_by_a_shorter_one(tmp_path):
    store = Records(tmp_path)
    store.put(record(CELL, 0.215, [0.9, 0.98]))
    store.put(record(CELL, 0.215, [0.9]))
    assert store.find(CELL.plan(0.215)).rounds_run == 2


def test_what_is_no_record_is_told(tmp_path):
    (tmp_path / "x").mkdir()
    for content in ("{", "[]", '{"format": 1}', '{"format": 9}'):
        (tmp_path / "x/y.json").write_text(content)
        with pytest.raises(RecordError, match=r"y.json"):
            Records(tmp_path)


def test_a_run_that_diverged_at_once_has_a_record(tmp_path):
    _, _, gone = measured(CELL)
    Records(tmp_path).put(gone)
    assert Records(tmp_path).find(gone.plan).diverged


def test_a_run_that_diverges_as_soon_as_it_is_taken_up_again_is_known_to(tmp_path):
    """It was ended after round 1 since another rate seemed better; taken up, its round 2 diverges: no new row."""
    plan, run = CELL.plan(0.215), RunDir(tmp_path / "runs/one")
    run.create(plan)
    run.write_identity(plan, "graph", "data", {})
    run.append({"round": 1, "test": {"accuracy": 0.5}, "train_loss": 1.0, "seconds": 1.0, "eval_seconds": 1.0})
    write_order(tmp_path / "runs/one.json", Order(plan_values(plan), None, 1, CAP, "enough", 0, "a search"))
    store = Records(tmp_path / "records")
    for stopped in (ABANDONED, DIVERGED, ABANDONED):
        run.write_json("stop.json", {"round": 1, "stopped": stopped, "reason": "so it was"})
        absorb(store, tmp_path / "runs")
    assert store.find(plan).diverged  # and what is known once stays so
    assert Records(tmp_path / "records").find(plan).diverged


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.floats(0, 1), st.integers(1, 40))
def test_thinning_does_not_move_the_crossing(accuracy, target, most):
    old, records.MOST_POINTS = records.MOST_POINTS, most
    try:
        kept = thin(accuracy)
    finally:
        records.MOST_POINTS = old
    assert kept == sorted(set(kept))
    assert kept[-1] == len(accuracy) - 1, "how long the run was stays known"
    rounds = list(range(1, len(accuracy) + 1))
    thinned = rounds_to_target([rounds[i] for i in kept], [accuracy[i] for i in kept], target)
    assert thinned == rounds_to_target(rounds, accuracy, target)


def test_short_curves_are_kept_whole_and_long_ones_are_thinned():
    assert thin([0.5] * 2000) == list(range(2000))
    noisy = [0.9 + (i % 7) / 1000 for i in range(20_000)]
    assert len(thin(noisy)) <= 2100
    assert replace(record(CELL, 0.1, [0.5]), rounds_run=9).rounds_run == 9


def test_records_of_another_folder_count_and_are_never_written_to(tmp_path):
    Records(tmp_path / "shipped").put(record(CELL, 0.215, [0.9]))
    before = [path.read_bytes() for path in (tmp_path / "shipped").rglob("*.json")]
    store = Records(tmp_path / "own", beside=tmp_path / "shipped")
    assert store.find(CELL.plan(0.215)).rounds_run == 1
    store.put(record(CELL, 0.215, [0.9, 0.95]))
    assert store.find(CELL.plan(0.215)).rounds_run == 2
    assert [path.read_bytes() for path in (tmp_path / "shipped").rglob("*.json")] == before
    assert Records(tmp_path / "own").find(CELL.plan(0.215)).rounds_run == 2
