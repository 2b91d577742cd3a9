import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedavg
from fedavg import ArrayData, Examples, Plan, Task
from fedavg.cli import cli
from fedavg.data import HeldOut
from fedavg.errors import DataError, Diverged, RunDirError
from fedavg.runlog.seals import unsealed
from fedavg.study.personalise import personalise, spread
from toys import LINE, SLOPES, TOY, line_data, line_plan, toy_data, toy_plan


def run_toy(path, **changes):
    fedavg.run(toy_plan(rounds=3, **changes), path)
    return path


def test_one_weight_by_hand(tmp_path):
    """y = 3 x for one client, -x for the other, twice each: one of each is held out. Gradients are 2 x (w x - y)."""
    x, y = torch.tensor([[1.0], [1.0], [1.0], [1.0]]), torch.tensor([3.0, 3.0, -1.0, -1.0])
    data = ArrayData("two lines", x, y, [np.array([0, 1]), np.array([2, 3])], Examples(x, y))
    plan = Plan(task=LINE, data=data, C=1, B="inf", lr=0.1, rounds=1, workers=1, holdout=0.5)
    fedavg.run(plan, tmp_path / "run")
    result = personalise(tmp_path / "run", epochs=2, lr=0.25, task=LINE, data=data)
    shared = 2 - 0.1 * (2 * (2 - 3) + 2 * (2 + 1)) / 2  # 1.6
    for judged, goal in zip(result.clients, (3, -1), strict=True):
        own = shared
        for _step in range(2):
            own -= 0.25 * 2 * (own - goal)
        assert (judged.examples, judged.held_out) == (1, 1)
        assert judged.shared["error"] == pytest.approx(abs(shared - goal))
        assert judged.own["error"] == pytest.approx(abs(own - goal))
    assert (result.metric, result.seen, result.round) == ("error", False, 1)
    gains = [abs(shared - goal) * (1 - 0.5**2) for goal in (3, -1)]
    assert result.gains.tolist() == pytest.approx(gains)
    assert result.to_dict()["share_of_clients"] == {"better": 1.0, "same": 0.0, "worse": 0.0}


def test_fine_tuning_helps_clients_whose_labels_mean_something_else(tmp_path):
    """Half the clients call class 0 what the others call class 1: no shared model can suit both."""
    data = toy_data(sizes=(40, 40, 40, 40))
    x = torch.cat([data.client(k).x for k in range(4)])
    y = torch.cat([data.client(k).y for k in range(4)])
    y[80:] = torch.tensor([1, 0, 2])[y[80:]]
    odd = ArrayData("odd", x, y, np.split(np.arange(160), 4), data.test)
    fedavg.run(toy_plan(data=odd, C=1, rounds=20, holdout=0.25), tmp_path / "run")
    result = personalise(tmp_path / "run", epochs=20, task=TOY, data=odd)
    assert result.gains.mean() > 0.2
    assert result.to_dict()["share_of_clients"]["better"] == 1


def test_the_same_for_any_number_of_workers(tmp_path):
    run_toy(tmp_path / "run", holdout=0.3)
    one, two, three = (personalise(tmp_path / "run", workers=n, task=TOY, data=toy_data()) for n in (1, 2, 3))
    assert one == two == three
    assert [judged.client for judged in one.clients] == [0, 1, 3, 4, 5]
    assert one.skipped == 1


def test_it_says_whether_the_shared_model_had_seen_what_it_is_judged_on(tmp_path):
    run_toy(tmp_path / "open")
    run_toy(tmp_path / "held", holdout=0.2)
    seen = personalise(tmp_path / "open", share=0.2, task=TOY, data=toy_data())
    honest = personalise(tmp_path / "held", share=0.5, task=TOY, data=toy_data())
    assert (seen.seen, honest.seen) == (True, False)
    assert honest.settings.share == 0.2  # what the run held out, whatever is asked for now
    expected = HeldOut(toy_data(), 0.2, 0).held_sizes
    for result in (seen, honest):
        assert [c.held_out for c in result.clients] == [int(n) for n in expected if n]


def test_the_run_is_left_as_it_was(tmp_path):
    run_toy(tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}
    personalise(tmp_path / "run", task=TOY, data=toy_data())
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()} == before


def test_spread_by_hand():
    """Percentiles by linear interpolation between 0, 1, ..., 100."""
    assert spread(range(101)) == {"mean": 50, "p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}


def test_nothing_to_judge_on_is_refused(tmp_path):
    fedavg.run(line_plan(rounds=1), tmp_path / "run")
    with pytest.raises(DataError, match="no client has examples to hold out; expected some: use a larger share"):
        personalise(tmp_path / "run", share=0.01, task=LINE, data=line_data())


def test_a_rate_that_is_too_high_is_told(tmp_path):
    fedavg.run(line_plan(rounds=1), tmp_path / "run")
    assert SLOPES[1](1) > 0
    for workers in (1, 2):
        with pytest.raises(Diverged, match="client 1: fine-tuning diverged at lr=1e.30; use a smaller lr"):
            personalise(tmp_path / "run", lr=1e30, share=0.4, workers=workers, task=LINE, data=line_data())


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    run_toy(tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.unlink()
    with pytest.raises(RunDirError, match="has no checkpoint of its plan; expected one: run it first"):
        personalise(tmp_path / "run", task=TOY, data=toy_data())


def test_the_command(tmp_path):
    plan = Plan(task="mnist-2nn", C=0.02, rounds=1, holdout=0.5, partition="shards", workers=1)
    fedavg.run(plan, tmp_path / "run")
    ask = ["personalise", str(tmp_path / "run"), "--epochs", "1", "--lr", "0.05"]
    shown = CliRunner().invoke(cli, [*ask, "--workers", "2"], catch_exceptions=False)
    assert "accuracy, own model" in shown.output
    assert "too high" not in shown.output
    printed = json.loads(CliRunner().invoke(cli, [*ask, "--json"], catch_exceptions=False).stdout)
    assert printed == unsealed(json.loads((tmp_path / "run/personalised.json").read_text()))
    assert printed["clients"] == 100
    assert printed["settings"] == {"epochs": 1, "batch": 10.0, "lr": 0.05, "share": 0.5}
    assert printed["metrics"]["accuracy"]["own"]["mean"] > printed["metrics"]["accuracy"]["shared"]["mean"]


def test_a_task_with_dropout_draws_the_same_on_any_worker(tmp_path):
    task = Task("d", lambda: torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 3)))
    fedavg.run(toy_plan(task=task, rounds=1), tmp_path / "run")
    one, two = (personalise(tmp_path / "run", workers=n, task=task, data=toy_data()) for n in (1, 2))
    assert one == two
