import json

import numpy as np
import pytest

from fedavg.errors import RunDirError
from fedavg.page import record as module
from fedavg.page.library import Library
from fedavg.page.record import RunFiles, locked_inodes
from fedavg.runlog.rundir import RunDir
from page.runs import age, begin, finished, row


def read(run: RunDir) -> RunFiles:
    record = RunFiles(run.path, run.path.name)
    record.refresh(locked_inodes())
    return record


def test_a_finished_run_has_its_rows_as_columns(tmp_path):
    record = read(finished(tmp_path / "run", rounds=3))
    assert record.state.word == "finished"
    assert record.columns.get("test.accuracy").tolist() == [1 - 1 / 2, 1 - 1 / 3, 1 - 1 / 4]
    assert record.columns.total("bytes_up") == 3_000_000
    assert record.row(2)["train_loss"] == 1.0
    assert record.row(0) is None
    assert record.row(4) is None


def test_what_some_rounds_lack_is_not_a_number_there(tmp_path):
    run = begin(tmp_path / "run")
    run.write_rows([row(1, test=None), row(2), row(3, test=None)])
    record = read(run)
    assert np.isnan(record.columns.get("test.accuracy")).tolist() == [True, False, True]
    assert record.columns.last("test.accuracy") == pytest.approx(2 / 3)


def test_a_growing_run_is_read_from_where_the_last_look_ended(tmp_path):
    run = begin(tmp_path / "run")
    record = read(run)
    assert (record.state.word, record.rounds) == ("running", 0)
    run.append(row(1))
    assert record.refresh()
    assert not record.refresh()
    run.append(row(2))
    assert record.refresh()
    assert record.rounds == 2


def test_half_a_line_is_waited_for_and_then_read(tmp_path):
    run = begin(tmp_path / "run")
    run.append(row(1))
    whole = run.metrics_path.read_bytes()
    run.append(row(2))
    both = run.metrics_path.read_bytes()
    with run.metrics_path.open("r+b") as file:
        file.truncate(len(whole) + 20)
    record = read(run)
    assert (record.rounds, record.state.word) == (1, "running")
    with run.metrics_path.open("ab") as file:
        file.write(both[len(whole) + 20 :])
    record.refresh()
    assert record.rounds == 2


def test_a_cut_line_that_nobody_completes_is_torn(tmp_path):
    run = begin(tmp_path / "run")
    run.append(row(1))
    with run.metrics_path.open("ab") as file:
        file.write(b'{"round": 2, "lr')
    age(run)
    state = read(run).state
    assert state.word == "torn"
    assert "after round 1" in state.notes[0]


def test_a_flipped_bit_leaves_the_rounds_before_it(tmp_path):
    run = finished(tmp_path / "run", rounds=5)
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"clients": 10', b'"clients": 11')
    run.metrics_path.write_bytes(b"".join(lines))
    record = read(run)
    assert (record.state.word, record.rounds) == ("damaged", 2)
    assert "line 3" in record.state.notes[0]
    assert not record.refresh()  # it is not read over and over


def test_a_damaged_run_that_is_resumed_is_read_anew(tmp_path):
    run = finished(tmp_path / "run", rounds=3)
    whole = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(whole.replace(b'"clients": 10', b'"clients": 12', 1))
    record = read(run)
    assert record.state.word == "damaged"
    run.write_rows([row(1), row(2)])
    record.refresh()
    assert (record.state.word, record.rounds) == ("finished", 2)


def test_rows_that_are_rewritten_shorter_are_read_anew(tmp_path):
    run = finished(tmp_path / "run", rounds=5)
    record = read(run)
    run.write_rows([row(1, lr=0.5)])
    record.refresh()
    assert record.columns.get("lr").tolist() == [0.5]


def test_a_long_record_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 2000)
    run = finished(tmp_path / "run", rounds=40)
    record = RunFiles(run.path, "run")
    record.refresh()
    assert record.state.word == "reading"
    while record.state.word == "reading":
        assert record.refresh()
    assert (record.state.word, record.rounds) == ("finished", 40)


@pytest.mark.parametrize("text", ['{"format": 1}', '{"name": "something else"}', "[]"])
def test_a_run_of_another_format_or_tool_is_foreign(tmp_path, text):
    run = finished(tmp_path / "run")
    (run.path / "run.json").write_text(text)
    assert read(run).state.word == "foreign"


def test_a_folder_with_metrics_of_another_tool_is_foreign(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    record = RunFiles(tmp_path, "other")
    record.refresh()
    assert record.state.word == "foreign"
    assert record.rounds == 0


def test_a_changed_run_json_is_damage(tmp_path):
    run = finished(tmp_path / "run")
    path = run.path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "plain"}))
    state = read(run).state
    assert state.word == "damaged"
    assert "run.json" in state.notes[0]


def test_a_run_whose_lock_is_held_runs_also_where_it_has_a_summary(tmp_path):
    run = finished(tmp_path / "run")
    age(run)
    assert read(run).state.word == "finished"
    with run.locked():
        assert read(run).state.word == "running"
    assert read(run).state.word == "finished"


def test_a_run_that_stopped_without_an_end_is_stopped(tmp_path):
    run = begin(tmp_path / "run")
    run.write_rows([row(1)])
    age(run)
    assert read(run).state.word == "stopped"


def test_a_library_finds_runs_below_its_folder_and_new_ones_later(tmp_path, monkeypatch):
    monkeypatch.setattr("fedavg.page.library.SEARCH_S", 0)
    finished(tmp_path / "a")
    finished(tmp_path / "grid" / "b")
    (tmp_path / "loop").symlink_to(tmp_path)
    library = Library(tmp_path)
    library.read_all()
    with library.looking() as records:
        assert [record.name for record in records.values()] == ["a", "grid/b"]
    before = library.version
    finished(tmp_path / "c")
    library.refresh()
    assert library.version > before
    with library.looking() as records:
        assert [record.name for record in records.values()] == ["a", "c", "grid/b"]


def test_a_library_of_one_run(tmp_path):
    finished(tmp_path / "a")
    library = Library(tmp_path / "a")
    library.read_all()
    with library.looking() as records:
        assert [record.name for record in records.values()] == ["a"]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="expected a folder of runs"):
        Library(tmp_path / "nothing")
