import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedavg
from fedavg import ArrayData, Examples, Task
from fedavg.cli.report import summary_rows
from fedavg.engine import native_epoch
from fedavg.errors import Diverged, PlanError, RunDirError, TaskError
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.seals import unsealed
from toys import TOY, toy_data, toy_plan


class Interrupted(Exception):
    pass


def stop_after(round):
    def watch(event):
        if event.round == round:
            raise Interrupted

    return watch


def start_and_stop(path, round, **changes):
    with pytest.raises(Interrupted):
        fedavg.run(toy_plan(**changes), path, stop_after(round))


def go_on(path):
    return fedavg.resume(path, task=TOY, data=toy_data())


def test_ten_lines_of_python():
    plan = toy_plan(rounds=6)
    accuracy = [event.test["accuracy"] for event in fedavg.train(plan) if isinstance(event, fedavg.Round)]
    result = fedavg.run(plan)
    assert result.rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert result.accuracy.tolist() == accuracy
    assert len(result.train_loss) == 6
    assert isinstance(result.model, torch.nn.Sequential)
    output = result.model(toy_data().test.x)
    assert float((output.argmax(1) == toy_data().test.y).float().mean()) == pytest.approx(accuracy[-1])


def test_the_run_directory(tmp_path):
    result = fedavg.run(toy_plan(rounds=5, target=0.999), tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"plan.toml", "run.json", "metrics.jsonl", "summary.json", "checkpoints", "model.safetensors"} <= names
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert unsealed(summary) == result.summary.to_dict()
    assert summary["bytes_up"] == sum(row["bytes_up"] for row in rows)
    assert summary["final_accuracy"] == rows[-1]["test"]["accuracy"]
    assert summary["best_accuracy"] == max(row["test"]["accuracy"] for row in rows)
    module = TOY.build()
    module.load_state_dict(load_file(tmp_path / "run/model.safetensors"))
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)


@pytest.mark.parametrize("round", [0, 1, 3])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, round):
    expected = fedavg.run(toy_plan(rounds=6))
    start_and_stop(tmp_path / "run", round, rounds=6)
    got = go_on(tmp_path / "run")
    assert got.summary.model_sha256 == expected.summary.model_sha256
    assert got.accuracy.tolist() == expected.accuracy.tolist()
    assert got.train_loss.tolist() == expected.train_loss.tolist()


def small_images():
    """Clients with images of 8 x 8 in two colours."""
    x, y = torch.rand(26, 2, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(26) % 3
    return ArrayData("images", x, y, np.split(np.arange(26), [7, 12, 19]), Examples(x, y))


def convolving():
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 3))


@pytest.mark.skipif(native_epoch.built() is None, reason="no kernels here")
def test_epochs_in_c_give_the_same_bits_for_any_number_of_workers_and_after_a_stop(tmp_path):
    task, data = Task("convolving", convolving), small_images()
    options = {"task": task, "data": data, "C": 1, "optimizer": "sgd:momentum=0.9", "lr": 0.05}
    whole = [fedavg.run(toy_plan(workers=workers, **options)).summary for workers in (1, 2, 3)]
    assert "native steps" in whole[0].engine
    assert len({summary.model_sha256 for summary in whole}) == 1
    start_and_stop(tmp_path / "run", 2, workers=3, **options)
    assert fedavg.resume(tmp_path / "run", task=task, data=data).summary.model_sha256 == whole[0].model_sha256


COMPRESSED = [
    {"codec": "stc:0.05", "downlink": "stc:0.05"},
    {"codec": "topk:0.05", "downlink": "quantise:2"},
    {"codec": "entropy:mask:0.2:unbiased=false", "downlink": "topk:0.1"},
]


@pytest.mark.parametrize("codecs", COMPRESSED, ids=lambda codecs: codecs["codec"])
@pytest.mark.parametrize("checkpoint_s", [0, 1000])
def test_residuals_survive_a_stop(tmp_path, codecs, checkpoint_s):
    """Clients' residuals, the server's and who has had which frames: all go on from the round of the checkpoint."""
    expected = fedavg.run(toy_plan(rounds=8, **codecs)).summary
    start_and_stop(tmp_path / "run", 5, rounds=8, checkpoint_s=checkpoint_s, **codecs)
    for newest in sorted((tmp_path / "run/checkpoints").iterdir())[1:]:
        newest.unlink()  # back to round 4, or to the start, while clients hold residuals of round 5
    got = go_on(tmp_path / "run").summary
    assert got.model_sha256 == expected.model_sha256
    assert (got.bytes_up, got.bytes_down) == (expected.bytes_up, expected.bytes_down)
    assert got.bytes_down < expected.rounds * 4 * expected.parameters * 3


def test_a_torn_last_line_is_recovered_from(tmp_path):
    expected = fedavg.run(toy_plan(rounds=6)).summary.model_sha256
    start_and_stop(tmp_path / "run", 4, rounds=6)
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    assert go_on(tmp_path / "run").summary.model_sha256 == expected
    assert [json.loads(line)["round"] for line in metrics.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_torn_checkpoint_is_recovered_from(tmp_path):
    expected = fedavg.run(toy_plan(rounds=6)).summary.model_sha256
    start_and_stop(tmp_path / "run", 4, rounds=6, checkpoint_s=0)
    newest = max((tmp_path / "run/checkpoints").iterdir())
    assert newest.name == "round-0000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    assert go_on(tmp_path / "run").summary.model_sha256 == expected


def test_without_any_checkpoint_it_starts_anew(tmp_path):
    expected = fedavg.run(toy_plan(rounds=6)).summary.model_sha256
    start_and_stop(tmp_path / "run", 4, rounds=6)
    for checkpoint in (tmp_path / "run/checkpoints").iterdir():
        checkpoint.unlink()
    assert go_on(tmp_path / "run").summary.model_sha256 == expected


def test_a_finished_run_is_only_read(tmp_path):
    first = fedavg.run(toy_plan(), tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    again = fedavg.resume(tmp_path / "run", stop_after(99), task=TOY, data=toy_data())
    assert again.summary == first.summary
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


def test_an_edited_plan_is_refused(tmp_path):
    start_and_stop(tmp_path / "run", 2)
    plan = tmp_path / "run/plan.toml"
    plan.write_text(plan.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(RunDirError, match="plan.toml has been changed since the run was started .*Undo the change"):
        go_on(tmp_path / "run")


def test_runtime_options_may_be_edited(tmp_path):
    expected = fedavg.run(toy_plan()).summary.model_sha256
    start_and_stop(tmp_path / "run", 2)
    plan = tmp_path / "run/plan.toml"
    plan.write_text(plan.read_text().replace("workers = 2", "workers = 1"))
    assert go_on(tmp_path / "run").summary.model_sha256 == expected


def test_other_data_is_refused(tmp_path):
    start_and_stop(tmp_path / "run", 2)
    with pytest.raises(RunDirError, match="was started on other data"):
        fedavg.resume(tmp_path / "run", task=TOY, data=toy_data(sizes=(10, 12, 0, 5, 20, 9)))


def test_a_foreign_directory_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="is not a run directory: it has no run.json"):
        fedavg.resume(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(RunDirError, match="has format 99; expected 2. .*start it again"):
        fedavg.resume(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunDirError, match="cannot be used"):
        fedavg.resume(tmp_path)


def test_a_directory_with_something_in_it_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("data")
    with pytest.raises(RunDirError, match="exists and is not empty.*It is no run: name another"):
        fedavg.run(toy_plan(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    fedavg.run(toy_plan(rounds=1), tmp_path / "run")
    with pytest.raises(RunDirError, match="exists and is not empty.*To continue that run: fedavg resume"):
        fedavg.run(toy_plan(), tmp_path / "run")


def test_only_one_process_writes_to_a_run(tmp_path):
    start_and_stop(tmp_path / "run", 2)
    with RunDir(tmp_path / "run").locked(), pytest.raises(RunDirError, match="in use by another process"):
        go_on(tmp_path / "run")


@pytest.mark.parametrize("codec", ["float32", "stc:0.1", "quantise:1"])
def test_a_diverged_run_keeps_the_last_good_model(tmp_path, codec):
    with pytest.raises(Diverged, match="round .* diverged .*: client"):
        fedavg.run(toy_plan(lr="1e3", B=1, E=5, rounds=60, lr_decay=1.0, codec=codec), tmp_path / "run")
    rows = RunDir(tmp_path / "run").rows()
    newest = max((tmp_path / "run/checkpoints").iterdir())
    assert newest.name == f"round-{len(rows):07d}.safetensors"
    assert np.isfinite(load_file(newest)["weights"].numpy()).all()


def test_checkpoints_do_not_pile_up(tmp_path):
    fedavg.run(toy_plan(rounds=6, checkpoint_s=0), tmp_path / "run")
    kept = sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())
    assert kept == ["round-0000005.safetensors", "round-0000006.safetensors"]


def test_the_summary_is_the_same_with_and_without_a_directory(tmp_path):
    timed = {"seconds": 0, "seconds_per_round": 0, "run_dir": None}
    with_directory = replace(fedavg.run(toy_plan(), tmp_path / "run").summary, **timed)
    assert with_directory == replace(fedavg.run(toy_plan()).summary, **timed)


class LooksAtItsData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x if x.sum() > 0 else -x)


def test_a_fall_back_to_the_plain_path_is_said_at_the_end_too(tmp_path):
    """In the summary, in its file, and after a resume that has nothing left to do."""
    plan = toy_plan(task=Task("moody", LooksAtItsData), rounds=1)
    result = fedavg.run(plan, tmp_path / "run")
    again = fedavg.resume(tmp_path / "run", task=plan.task, data=plan.data)
    written = json.loads((tmp_path / "run/summary.json").read_text())
    for summary in (result.summary.to_dict(), again.summary.to_dict(), written):
        assert summary["engine"] == "plain"
        assert "it looks at the values of its data" in summary["engine_reason"]
    assert any("looks at the values" in text for _, text in summary_rows(result.summary, None))


def test_a_run_in_a_world_says_what_it_came_to_there(tmp_path, capsys):
    """The clock is the world's own, not the time of uploads at the plan's uplink; a training loss is called that."""
    plan = toy_plan(world="diurnal:2:hours=23:spread=0", rounds=2)
    rows = dict(summary_rows(fedavg.run(plan, tmp_path / "run", progress=True).summary, None))
    assert rows["simulated clock"].endswith("in the plan's world")
    assert rows["in the world"].startswith("6 asked, 0.0% late, 0.0% dropped out; 0.0% of the clients' time wasted")
    assert rows["reports by group"].startswith("0 ")
    assert "training loss 0." in capsys.readouterr().err


def test_the_same_call_again_goes_on_with_the_run(tmp_path):
    plan = toy_plan(rounds=4)
    start_and_stop(tmp_path / "run", 2, rounds=4)
    resumed = fedavg.run(plan, tmp_path / "run", exist="resume")
    assert resumed.summary.model_sha256 == fedavg.run(plan).summary.model_sha256
    assert fedavg.run(plan, tmp_path / "run", exist="resume").summary.rounds == 4
    longer = fedavg.run(replace(plan, rounds=6), tmp_path / "run", exist="resume")
    assert longer.summary.model_sha256 == fedavg.run(replace(plan, rounds=6)).summary.model_sha256


def test_another_plan_does_not_go_on_with_the_run(tmp_path):
    fedavg.run(toy_plan(rounds=2), tmp_path / "run")
    with pytest.raises(RunDirError, match="E: .* was started with .; got 7"):
        fedavg.run(toy_plan(rounds=2, E=7), tmp_path / "run", exist="resume")


def test_a_new_run_is_recorded_beside_the_old(tmp_path):
    plan = toy_plan(rounds=2)
    places = [fedavg.run(plan, tmp_path / "run", exist="new").summary.run_dir for _ in range(3)]
    assert places == [str(tmp_path / name) for name in ("run", "run-2", "run-3")]


def test_progress_is_shown_on_request(tmp_path, capfd):
    fedavg.run(toy_plan(rounds=2))
    assert capfd.readouterr().err == ""
    fedavg.run(toy_plan(rounds=2), tmp_path / "run", progress=True)
    shown = capfd.readouterr().err
    assert f"run directory {tmp_path / 'run'}" in shown
    assert "round 2/2  accuracy" in shown


def test_a_result_at_a_glance(tmp_path):
    result = fedavg.run(toy_plan(rounds=3, target=0.5), tmp_path / "<run>")
    assert repr(result).startswith(f"<Result {result.summary.status} after")
    assert "\n" not in repr(result)
    html = result._repr_html_()
    assert "&lt;run&gt;" in html
    assert "<run>" not in html
    frame = result.to_pandas()
    assert frame["round"].tolist() == list(range(1, result.summary.rounds + 1))
    assert frame["accuracy"].tolist() == result.accuracy.tolist()
    assert frame["bytes_up"].sum() == result.summary.bytes_up


def test_wrong_types_are_told_before_anything_runs():
    """Each was a TypeError from inside, the first one after round 1 had been prepared."""
    with pytest.raises(PlanError, match="watch: got 3; expected a function of an event"):
        fedavg.run(toy_plan(), watch=3)
    with pytest.raises(TaskError, match="metrics: got 3; expected a list"):
        fedavg.run(toy_plan(task=Task("t", TOY.build, metrics=3)))
    with pytest.raises(
        PlanError, match="data: got 3 of type int; expected a fedavg.FederatedData, or text: 'module:Name'"
    ):
        toy_plan(data=3)
