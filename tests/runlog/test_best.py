import pytest
import torch
from safetensors.torch import load_file

import fedavg
from fedavg import Mean, Task
from fedavg.errors import PlanError
from fedavg.runlog.best import read_best
from toys import TOY, toy_data, toy_plan

#: A rate that is too high: the best round is not the last.
PLAN = toy_plan(rounds=6, lr=2.0, E=1)


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_best_model_is_that_of_the_round_with_the_best_value(tmp_path):
    weights = {}
    result = fedavg.run(PLAN, tmp_path / "run", lambda event: weights.update({event.round: event.state.weights}))
    best = int(result.accuracy.argmax()) + 1
    assert result.summary.best_model == {"metric": "accuracy", "value": result.accuracy.max(), "round": best}
    flat = torch.cat([tensor.flatten() for tensor in result.best_model.state_dict().values()])
    assert torch.equal(flat, weights[best])
    kept = load_file(tmp_path / "run/best.safetensors")
    assert same(kept, dict(result.best_model.state_dict()))


def test_by_another_metric(tmp_path):
    result = fedavg.run(PLAN, tmp_path / "run", keep_best="loss")
    assert result.summary.best_model["round"] == int(result.loss.argmin()) + 1
    assert read_best(tmp_path / "run").metric == "loss"


@pytest.mark.parametrize("round", [1, 3, 5])
def test_a_run_that_was_stopped_keeps_the_same_best_model(tmp_path, round):
    class Interrupted(Exception):
        pass

    def stop(event):
        if event.round == round:
            raise Interrupted

    whole = fedavg.run(PLAN, tmp_path / "whole")
    with pytest.raises(Interrupted):
        fedavg.run(PLAN, tmp_path / "run", stop)
    resumed = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data())
    assert resumed.summary.best_model == whole.summary.best_model
    assert same(dict(resumed.best_model.state_dict()), dict(whole.best_model.state_dict()))


def test_a_damaged_best_model_is_not_handed_out(tmp_path, caplog):
    fedavg.run(PLAN, tmp_path / "run")
    path = tmp_path / "run/best.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    again = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data())
    assert again.best_model is None
    assert "the best by accuracy, is lost" in caplog.text


def test_a_metric_that_is_not_there_or_has_no_direction_is_refused():
    with pytest.raises(PlanError, match="keep_best: got 'f1'; expected a metric of the task: accuracy, loss"):
        fedavg.run(PLAN, keep_best="f1")
    task = Task("t", TOY.build, metrics={"odd": Mean(lambda output, y: y.float())})
    with pytest.raises(PlanError, match="it is not known whether higher is better"):
        fedavg.run(toy_plan(task=task, rounds=1), keep_best="odd")
