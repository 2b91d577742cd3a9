import csv
import json
import sys
import time
import warnings

import pytest

import fedavg
import programs
from fedavg.errors import FedAvgError, PlanError
from fedavg.runlog.rundir import RunDir
from fedavg.study.track import TensorBoard, export_run, new_tracker, tracking
from toys import toy_plan


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "toy"
    plan = toy_plan(rounds=3, eval_every=2)
    with tracking([new_tracker("jsonl", path)], plan) as watch:
        fedavg.run(plan, path, watch)
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_is_told_of_live_as_flat_rows(run):
    rows = RunDir(run).rows()
    found = lines(run / "track.jsonl")
    assert [row["round"] for row in found] == [1, 2, 3]
    assert found[1]["accuracy"] == rows[1]["test"]["accuracy"]
    assert "accuracy" not in found[0]  # it was not evaluated
    assert found[0]["asked"] == 3
    assert all(not isinstance(value, dict | list) for row in found for value in row.values())


def test_csv_has_a_row_for_each_round_and_empty_cells_for_what_is_not_known(run, tmp_path):
    place = export_run(run, "csv", tmp_path / "a.csv")
    with place.open(newline="") as file:
        found = list(csv.DictReader(file))
    rows = RunDir(run).rows()
    assert [row["round"] for row in found] == ["1", "2", "3"]
    assert found[0]["accuracy"] == ""
    assert float(found[1]["accuracy"]) == rows[1]["test"]["accuracy"]
    assert [float(row["train_loss"]) for row in found] == [row["train_loss"] for row in rows]


def test_parquet_holds_the_same(run):
    pandas = pytest.importorskip("pandas")
    found = pandas.read_parquet(export_run(run, "parquet"))
    assert found["round"].tolist() == [1, 2, 3]
    assert found["accuracy"].isna().tolist() == [True, False, False]


def test_tensorboards_own_reader_finds_every_number(run, tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries beneath
        place = export_run(run, "tensorboard", tmp_path / "board")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = EventAccumulator(str(place))
        board.Reload()
        losses = [(event.step, event.value) for event in board.Scalars("train_loss")]
        steps = [event.step for event in board.Scalars("accuracy")]
    rows = RunDir(run).rows()
    assert losses == [(row["round"], pytest.approx(row["train_loss"])) for row in rows]
    assert steps == [2, 3]


def test_rounds_that_are_done_again_are_told_once(tmp_path):
    tracker = new_tracker(f"jsonl:{tmp_path / 'a.jsonl'}", tmp_path)
    tracker.begin({}, 0)
    for t in (1, 2, 3):
        tracker.row({"round": t, "loss": 1.0})
    tracker.begin({}, 1)  # resumed after round 1
    tracker.row({"round": 2, "loss": 2.0})
    assert lines(tmp_path / "a.jsonl") == [{"round": 1, "loss": 1.0}, {"round": 2, "loss": 2.0}]


def test_a_tracker_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(PlanError, match="--track: got 'comet'; expected jsonl, tensorboard, mlflow, wandb"):
        new_tracker("comet", tmp_path)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FedAvgError, match="no metrics.jsonl"):
        export_run(tmp_path, "csv")


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(FedAvgError, match="fedavg\\[tensorboard\\]"):
        TensorBoard(str(tmp_path), "run")


def test_the_command_tracks_a_run_live_and_when_it_is_resumed(tmp_path):
    pytest.importorskip("tensorboard")
    path = tmp_path / "run"
    options = ["-C", "0.02", "--rounds", "2", "--workers", "1", "--run-dir", str(path), "--no-plot", "--quiet"]
    tracked = ["--track", "jsonl", "--track", f"tensorboard:{tmp_path / 'board'}"]
    assert programs.fedavg("run", "mnist-2nn", *options, *tracked).returncode == 0
    assert [row["round"] for row in lines(path / "track.jsonl")] == [1, 2]
    again = programs.fedavg("resume", path, "--rounds", "3", "--no-plot", "--quiet", "--track", "jsonl")
    assert again.returncode == 0
    assert [row["round"] for row in lines(path / "track.jsonl")] == [1, 2, 3]
    assert list((tmp_path / "board").iterdir())
    assert programs.fedavg("export", path, "--to", "csv").stdout == f"wrote {path / 'metrics.csv'}\n"


def test_a_wrong_tracker_leaves_nothing_behind(tmp_path):
    ended = programs.fedavg("run", "mnist-2nn", "--run-dir", tmp_path / "run", "--track", "comet")
    assert ended.returncode == 2
    assert "--track: got 'comet'" in ended.stderr
    assert not (tmp_path / "run").exists()


def mlflow_runs(store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries beneath
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{store}")
        found = client.search_runs([client.get_experiment_by_name("fedavg").experiment_id])
        return [
            (
                one.info.run_name,
                one.data.params,
                [(each.step, each.value) for each in client.get_metric_history(one.info.run_id, "train_loss")],
            )
            for one in found
        ]


def test_mlflows_own_client_finds_every_round_once(run, tmp_path):
    pytest.importorskip("mlflow")
    place = export_run(run, "mlflow", tmp_path / "mlflow.db")
    ((name, options, losses),) = mlflow_runs(place)
    rows = RunDir(run).rows()
    assert name == "toy"
    assert options["C"] == str(toy_plan().C)
    assert losses == [(row["round"], row["train_loss"]) for row in rows]
    tracker = new_tracker(f"mlflow:{place}", run)
    tracker.begin({}, 2)  # resumed after round 2: round 3 is computed again
    tracker.row({"round": 3, "train_loss": rows[2]["train_loss"], "clients": 3})
    tracker.row({"round": 4, "train_loss": 0.5, "clients": 3})
    tracker.end()
    ((_, _, longer),) = mlflow_runs(place)
    assert longer == [*losses, (4, 0.5)]


def wandb_history(file):
    """The rounds in a file of Weights & Biases: records of its own protocol in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = file.read_bytes(), 7, b""
    rounds = []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # a block's rest that no header fits into
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part = (part if kind in (3, 4) else b"") + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            history = Record.FromString(part).history
            items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in history.item}
            if items:
                rounds.append(items)
    return rounds


def test_the_file_of_weights_and_biases_has_every_round(run, tmp_path):
    pytest.importorskip("wandb")
    place = export_run(run, "wandb", tmp_path / "wandb")
    (file,) = place.rglob("*.wandb")
    expected = [(row["round"], row["train_loss"]) for row in RunDir(run).rows()]
    end = time.monotonic() + 60
    while len(wandb_history(file)) < len(expected) and time.monotonic() < end:  # another process of theirs writes it
        time.sleep(0.1)
    assert [(items["_step"], items["train_loss"]) for items in wandb_history(file)] == expected
