import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedavg
from fedavg import Plan, Task
from fedavg.errors import PlanError
from fedavg.metrics import Accuracy, Loss, MacroF1, Mean
from fedavg.metrics.goal import Best, Goal, improved, make_goal, stalled
from toys import TOY, line_plan, toy_data, toy_plan

TASK = {"accuracy": Accuracy(), "loss": Loss(F.cross_entropy), "f1": MacroF1(3)}


@pytest.mark.parametrize(
    ("target", "patience", "expected"),
    [
        (None, None, Goal("accuracy", True)),
        (0.97, None, Goal("accuracy", True, 0.97)),
        ("f1=0.8", None, Goal("f1", True, 0.8)),
        ("f1=0.8", 20, Goal("f1", True, 0.8, 20)),
        (None, 20, Goal("accuracy", True, None, 20)),
        (None, "loss=7", Goal("loss", False, None, 7)),
        ("loss=0.1", "loss=7", Goal("loss", False, 0.1, 7)),
        ("clients.f1=0.8", 5, Goal("clients.f1", True, 0.8, 5)),
        ("clients.loss.worst_decile=0.1", None, Goal("clients.loss.worst_decile", False, 0.1)),
        ("clients.accuracy.variance=0.1", None, Goal("clients.accuracy.variance", False, 0.1)),
    ],
)
def test_what_a_plan_asks_for(target, patience, expected):
    assert make_goal(target, patience, TASK, {}) == expected


def test_goals_that_can_not_be_are_refused():
    with pytest.raises(PlanError, match="target: the task has no metric 'auc'; expected one of accuracy, loss, f1"):
        make_goal("auc=0.9", None, TASK, {})
    with pytest.raises(
        PlanError, match="the task has no metric 'accuracy'; expected one of loss, clients.loss, as in target"
    ):
        make_goal(0.97, None, {"loss": Loss()}, {})
    with pytest.raises(PlanError, match="nothing says whether a higher 'own' is better"):
        make_goal("own=1", None, {"own": Mean(lambda o, y: o, "own")}, {})
    with pytest.raises(PlanError, match="expected both of one metric"):
        make_goal("f1=0.8", "loss=20", TASK, {})


def test_lower_can_be_better():
    goal = Goal("loss", False, target=0.5)
    assert [goal.reached(value) for value in (0.6, 0.5, 0.4, float("nan"))] == [False, True, True, False]
    assert Goal("accuracy", True, target=0.5).reached(0.6)


def test_patience_by_hand():
    goal, best, ends = Goal("loss", False, patience=3), None, []
    for round, value in enumerate([float("nan"), 0.9, 0.5, 0.6, 0.5, 0.7], 1):
        best = improved(goal, best, round, value)
        ends.append(stalled(goal, best, round))
    assert best == Best(0.5, 3)
    assert ends == [False, False, False, False, False, True]


def test_the_plan_reads_both_forms():
    assert (Plan(target="0.97").target, Plan(target="accuracy=0.97").target) == (0.97, 0.97)
    assert (Plan(target="f1=0.80").target, Plan(patience="20").patience, Plan(patience="loss=20").patience) == (
        "f1=0.8", 20, "loss=20",
    )  # fmt: skip
    for bad in (
        {"target": 1.5},
        {"target": "f1=x"},
        {"target": "accuracy=2"},
        {"target": "clients.accuracy=2"},
        {"patience": 0},
        {"patience": "f1=0"},
    ):
        with pytest.raises(PlanError, match=next(iter(bad))):
            Plan(**bad)


def test_a_target_keeps_all_its_digits():
    """It was cut to six of them."""
    assert Plan(target="f1=0.8123456789").target == "f1=0.8123456789"
    assert Plan(target="loss=2.0").target == "loss=2"


def test_digests_of_old_plans_have_not_changed():
    """They are what they were when a target could only be an accuracy: records are found by them."""
    assert Plan().digest == "01e7b720ff566d53"
    assert Plan(target=0.97).digest == Plan(target="accuracy=0.97").digest == "210f02f31a2d578e"
    assert Plan(target=0.97).digest != Plan(target="f1=0.97").digest


def test_a_run_stops_at_the_target_of_any_metric():
    task = Task("t", TOY.build, metrics=["accuracy", "loss", "f1:3"])
    whole = fedavg.run(toy_plan(task=task, rounds=6))
    wanted = float(whole.metrics["f1"][2])
    first = next(i for i, value in enumerate(whole.metrics["f1"]) if value >= wanted)
    stopped = fedavg.run(toy_plan(task=task, rounds=6, target=f"f1={wanted!r}"))
    assert (stopped.summary.status, len(stopped.rounds)) == ("target reached", first + 1)
    low = fedavg.run(toy_plan(task=task, rounds=6, target=f"loss={float(whole.loss[2]) * 1.0001!r}"))
    assert low.summary.status == "target reached"
    assert low.summary.rounds_to_target is not None
    assert low.summary.rounds_to_target <= 3


def test_a_run_without_improvement_stops(tmp_path):
    """The line is fitted after two rounds at this rate: the error can only jitter from there on."""
    plan = line_plan(rounds=50, lr=0.2, patience="error=4", workers=1)
    result = fedavg.run(plan, tmp_path / "run")
    error = result.metrics["error"]
    best = int(np.argmin(error))
    assert result.summary.status == "no improvement"
    assert len(error) == best + 1 + 4 < 50
    assert json.loads((tmp_path / "run/summary.json").read_text())["metrics"]["error"]["best"] == error[best]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_resumed_run_goes_on_waiting(tmp_path, after):
    """Patience counts from before the stop, as in the run that was not stopped."""
    plan = line_plan(rounds=50, lr=0.2, patience="error=4", workers=1, checkpoint_s=0)
    whole = fedavg.run(plan)

    def stop(event):
        if event.round == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        fedavg.run(plan, tmp_path / "run", stop)
    resumed = fedavg.resume(tmp_path / "run", task=plan.task, data=plan.data)
    assert resumed.metrics["error"].tolist() == whole.metrics["error"].tolist()
    assert resumed.summary.status == whole.summary.status == "no improvement"
    again = fedavg.resume(tmp_path / "run", task=plan.task, data=plan.data)
    assert again.rounds.tolist() == whole.rounds.tolist(), "a run that has ended is not gone on with"


def test_a_target_needs_something_to_be_evaluated():
    data = toy_data()
    bare = fedavg.ArrayData("bare", *(torch.cat([getattr(data.client(k), a) for k in range(len(data))]) for a in "xy"),
                            np.split(np.arange(int(data.sizes.sum())), np.cumsum(data.sizes)[:-1]), None)  # fmt: skip
    with pytest.raises(PlanError, match="target: got 0.9, but nothing is evaluated"):
        next(iter(fedavg.train(toy_plan(data=bare, target=0.9))))


def test_more_metrics_by_the_plan():
    last = list(fedavg.train(toy_plan(task=Task("t", lambda: nn.Linear(8, 3)), metrics="f1:3, topk:2")))[-1]
    assert list(last.test) == ["accuracy", "loss", "f1", "top2"]
    with pytest.raises(PlanError, match="metrics: got 'f3'"):
        Plan(metrics=("f3",))
