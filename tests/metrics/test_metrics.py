"""Metrics are sums and a function of the sums: by hand, and the same for a set that is cut into any pieces."""

from dataclasses import dataclass
from functools import partial
from math import exp, isnan, log, sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedavg
from fedavg import Examples, Task
from fedavg.engine.trainer import Trainer
from fedavg.errors import PlanError, TaskError
from fedavg.metrics import (
    AUC,
    IGNORE,
    MAE,
    METRICS,
    RMSE,
    Accuracy,
    ClassAccuracy,
    Loss,
    MacroF1,
    Mean,
    Metric,
    Perplexity,
    TopKAccuracy,
    checked_sums,
    judge,
    make_metric,
    report,
)
from toys import line_data, line_plan, toy_data, toy_plan

#: Six predictions over three classes: 0 is right twice of 3 times, 1 once of 2, 2 once of 1.
PREDICTED = torch.tensor([0, 0, 1, 1, 2, 2])
RIGHT = torch.tensor([0, 0, 0, 1, 1, 2])
LOGITS = F.one_hot(PREDICTED, 3).float()

#: One of each for three classes or one number.
EVERY = {
    "accuracy": Accuracy(), "topk": TopKAccuracy(2), "loss": Loss(F.cross_entropy),
    "perplexity": Perplexity(F.cross_entropy),
    "class_accuracy": ClassAccuracy(3), "f1": MacroF1(3), "auc": AUC(7), "mae": MAE(), "rmse": RMSE(),
}  # fmt: skip


def outputs(name, n, seed=0):
    """Something that the metric called `name` can judge."""
    rng = np.random.default_rng(seed)
    if name in ("mae", "rmse"):
        return torch.from_numpy(rng.normal(size=n)), torch.from_numpy(rng.normal(size=n))
    if name == "auc":
        return torch.from_numpy(rng.normal(size=n)), torch.from_numpy(rng.integers(0, 2, n))
    y = rng.integers(0, 3, n)
    y[rng.random(n) < 0.1] = IGNORE
    return torch.from_numpy(rng.normal(size=(n, 3))), torch.from_numpy(y)


def evaluated(task, x, y):
    """What a run reports for the initial weights."""
    return report(task.judged_by, Trainer(task, seed=0).evaluate(Examples(x, y)))


# By hand


def test_accuracy_by_hand():
    assert judge(Accuracy(), LOGITS, RIGHT) == 4 / 6
    assert judge(Accuracy(), LOGITS, F.one_hot(RIGHT, 3).float()) == 4 / 6, "probabilities of classes as targets"
    padded = torch.where(torch.arange(6) < 2, RIGHT, IGNORE)
    assert judge(Accuracy(), LOGITS, padded) == 1, "what is ignored is no prediction"


def test_class_accuracy_by_hand():
    sums = checked_sums(ClassAccuracy(3), LOGITS, RIGHT)
    assert ClassAccuracy(3).details(sums) == {"0": 2 / 3, "1": 1 / 2, "2": 1.0}
    assert ClassAccuracy(3).value(sums) == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    absent = checked_sums(ClassAccuracy(3), LOGITS[:4], RIGHT[:4])
    assert list(ClassAccuracy(3).details(absent)) == ["0", "1"], "a class that is not there has no accuracy"


def test_macro_f1_by_hand():
    """TP, predicted and actual: 2, 2, 3 for class 0; 1, 2, 2 for class 1; 1, 2, 1 for class 2."""
    assert judge(MacroF1(3), LOGITS, RIGHT) == pytest.approx((4 / 5 + 2 / 4 + 2 / 3) / 3)
    assert judge(MacroF1(3), LOGITS[:3], RIGHT[:3]) == pytest.approx((4 / 5 + 0) / 2), (
        "class 2 is neither there nor meant"
    )


def test_top_k_by_hand():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 4)
    assert judge(TopKAccuracy(3), logits, torch.tensor([0, 1, 2, 3])) == 3 / 4
    assert TopKAccuracy(3).name == "top3"


def test_auc_by_hand():
    """Scores 0.1, 0.4, 0.6, 0.9 with labels 0, 1, 0, 1: three of four pairs are in order; a tie counts half."""
    scores = torch.tensor([0.1, 0.4, 0.6, 0.9]).logit()
    y = torch.tensor([0, 1, 0, 1])
    assert judge(AUC(10), scores, y) == 3 / 4
    assert judge(AUC(10), scores[:, None], y[:, None]) == 3 / 4
    assert judge(AUC(10), torch.stack([-scores, torch.zeros(4)], 1), y) == 3 / 4
    assert judge(AUC(1), scores, y) == 1 / 2


def test_perplexity_by_hand():
    logits = torch.tensor([[log(3), 0.0], [0.0, 0.0]])
    assert judge(Perplexity(F.cross_entropy), logits, torch.tensor([0, 0])) == pytest.approx(
        exp((log(4 / 3) + log(2)) / 2)
    )


def test_errors_of_regression_by_hand():
    output, y = torch.tensor([[1.0], [5.0], [2.0]]), torch.tensor([2.0, 2.0, 2.0])
    assert judge(MAE(), output, y) == 4 / 3
    assert judge(RMSE(), output, y) == sqrt(10 / 3)


def test_a_mean_of_nothing_is_no_number():
    for metric in (Accuracy(), Loss(F.cross_entropy), MacroF1(3), ClassAccuracy(3)):
        assert isnan(judge(metric, LOGITS, torch.full((6,), IGNORE)))


# The law


@given(st.sampled_from(sorted(EVERY)), st.integers(2, 40), st.data())
def test_sums_of_pieces_are_the_sums_of_the_whole(name, n, data):
    metric, (output, y) = EVERY[name], outputs(name, n)
    cut = data.draw(st.integers(1, n - 1))
    pieces = checked_sums(metric, output[:cut], y[:cut]) + checked_sums(metric, output[cut:], y[cut:])
    assert pieces.tolist() == pytest.approx(checked_sums(metric, output, y).tolist(), rel=1e-12)


def test_every_metric_of_the_registry_is_held_to_the_law():
    assert set(EVERY) == set(METRICS)
    for name, metric in EVERY.items():
        assert metric.size == len(checked_sums(metric, *outputs(name, 5)))
        assert metric.higher_is_better in (True, False)


# The task's loss


def test_1001_rows_are_judged_as_one_set():
    """The last piece has one row: as the mean of two pieces' means it would count like a thousand."""
    torch.manual_seed(1)
    x, y = torch.randn(1001, 4), torch.randint(0, 3, (1001,))
    y[-1] = (nn_of(x)[-1]).argmin()
    task = Task("t", linear, metrics=["loss", "f1:3"])
    measured = evaluated(task, x, y)
    output = nn_of(x)
    assert measured["loss"] == pytest.approx(float(F.cross_entropy(output, y)), rel=1e-6)
    assert measured["f1"] == pytest.approx(f1_by_definition(output.argmax(1), y), rel=1e-12)
    mean_of_means = float((F.cross_entropy(output[:1000], y[:1000]) + F.cross_entropy(output[1000:], y[1000:])) / 2)
    assert abs(measured["loss"] - mean_of_means) > 0.05


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def nn_of(x):
    with torch.no_grad():
        return linear()(x)


def f1_by_definition(predicted, right):
    scores = []
    for c in range(3):
        hits = float(((predicted == c) & (right == c)).sum())
        precision, recall = hits / float((predicted == c).sum()), hits / float((right == c).sum())
        scores.append(2 * precision * recall / (precision + recall))
    return sum(scores) / 3


def test_the_loss_of_a_regression_is_its_own():
    """Before, every task's loss was cross entropy: of one class, that is 0 in every round."""
    x, y = torch.randn(7, 8), torch.randn(7, 1)
    task = Task("r", lambda: nn.Linear(8, 1), loss=F.mse_loss, eval_batch=4)
    with torch.no_grad():
        expected = float(F.mse_loss(Trainer(task, seed=0).model.module(x), y))
    assert evaluated(task, x, y) == {"loss": pytest.approx(expected, rel=1e-6)}


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, weight=torch.tensor([1.0, 5.0, 0.2])),
        partial(F.cross_entropy, ignore_index=1),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2])),
        nn.CrossEntropyLoss(ignore_index=2),
        lambda output, y: F.cross_entropy(output, y),
    ],
)
def test_a_loss_over_classes_counts_by_what_it_is_a_mean_over(loss):
    x, y = torch.randn(23, 4), torch.randint(0, 3, (23,))
    y[5:9] = IGNORE if getattr(loss, "ignore_index", IGNORE) == IGNORE and "ignore_index" not in str(loss) else 0
    task = Task("t", linear, loss=loss, metrics=["loss"], eval_batch=10)
    assert evaluated(task, x, y)["loss"] == pytest.approx(float(loss(nn_of(x), y)), rel=1e-5)


def test_a_loss_over_values_counts_by_rows():
    x, y = torch.randn(23, 4), torch.randn(23, 3)
    for loss in (F.mse_loss, F.l1_loss, nn.HuberLoss()):
        task = Task("t", linear, loss=loss, eval_batch=10)
        assert evaluated(task, x, y)["loss"] == pytest.approx(float(loss(nn_of(x), y)), rel=1e-5)
    labels = torch.randint(0, 2, (23, 3)).float()
    task = Task("t", linear, loss=F.binary_cross_entropy_with_logits, eval_batch=10)
    expected = float(F.binary_cross_entropy_with_logits(nn_of(x), labels))
    assert evaluated(task, x, labels)["loss"] == pytest.approx(expected, rel=1e-5)


def test_accuracy_belongs_to_classification_only():
    losses = {F.cross_entropy: True, nn.NLLLoss(): True, partial(F.cross_entropy, label_smoothing=0.1): True,
              F.mse_loss: False, F.binary_cross_entropy_with_logits: False}  # fmt: skip
    for loss, classification in losses.items():
        assert list(Task("t", linear, loss=loss).judged_by) == (["accuracy", "loss"] if classification else ["loss"])


# Metrics as a user gives them


def test_a_metric_of_one_s_own_in_five_lines():
    @dataclass(frozen=True)
    class Within(Metric):
        limit: float
        name, size, higher_is_better = "within", 2, True

        def sums(self, output, y):
            return [((output[:, 0] - y).abs() <= self.limit).sum(), len(y)]

        def value(self, sums):
            return float(sums[0] / sums[1])

    task = Task("line", lambda: nn.Linear(1, 1), loss=lambda o, y: F.mse_loss(o[:, 0], y), metrics=[Within(0.5), "mae"])
    result = fedavg.run(line_plan(task=task, rounds=40, lr=0.2))
    assert result.plan.task is task
    *_, last = fedavg.train(line_plan(task=task, rounds=40, lr=0.2))
    assert list(last.test) == ["within", "mae"]
    errors = (result.model(line_data().test.x)[:, 0] - line_data().test.y).abs().detach()
    assert last.test["within"] == float((errors <= 0.5).double().mean())
    assert last.test["mae"] == pytest.approx(float(errors.mean()), rel=1e-6)


def test_names_texts_and_functions_may_be_mixed_in_a_dict():
    task = Task(
        "t", linear, metrics={"best": "accuracy", "top two": TopKAccuracy(2), "sure": lambda o, y: o.max(1).values > 1}
    )
    assert {name: type(metric) for name, metric in task.judged_by.items()} == {
        "best": Accuracy, "top two": TopKAccuracy, "sure": Mean,
    }  # fmt: skip
    assert task.judged_by["sure"].higher_is_better is None


def test_the_task_s_own_loss_as_a_metric_is_exact():
    assert Task("t", linear, metrics={"loss": F.cross_entropy}).judged_by["loss"] == Loss(F.cross_entropy)


@pytest.mark.parametrize("function", [lambda o, y: float(o.mean()), lambda o, y: o.mean(), F.mse_loss])
def test_one_number_for_a_batch_is_refused_before_round_1(function):
    task = Task("t", lambda: nn.Linear(8, 3), metrics={"own": function if function is not F.mse_loss else scalar_loss})
    with pytest.raises(
        TaskError, match=r"metric 'own' gave one number .* Expected a tensor with one value per predict"
    ):
        next(iter(fedavg.train(toy_plan(task=task, workers=1))))


def scalar_loss(output, y):
    return F.mse_loss(output.argmax(1).float(), y.float())


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["f2"], "metrics: got 'f2'; expected one of accuracy, topk:K, loss"),
        (["f1"], "metrics: got 'f1'; expected 'f1:CLASSES'"),
        (["accuracy", "accuracy"], "expected each name once"),
        ({"mine": 3}, "metric 'mine': got int; expected a name such as 'f1:10'"),
        ([lambda o, y: o], "got function; expected a name"),
    ],
)
def test_what_is_no_metric_is_refused_when_the_task_is_made(metrics, message):
    with pytest.raises((TaskError, PlanError), match=message):
        Task("t", linear, metrics=metrics)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["f1:4"], "f1:4 is for 4 classes; the model gives 3"),
        (["topk:9"], "topk: got k=9; expected 1 to 3"),
        (["mae"], "mae expects as many numbers in output and y"),
        (["auc"], "auc expects logits"),
    ],
)
def test_a_metric_that_does_not_fit_the_model_is_refused_before_round_1(metrics, message):
    task = Task("t", lambda: nn.Linear(8, 3), metrics=metrics)
    with pytest.raises(TaskError, match=message):
        next(iter(fedavg.train(toy_plan(task=task, workers=1))))


def test_accuracy_of_one_logit_is_refused_rather_than_0():
    with pytest.raises(ValueError, match="accuracy expects logits"):
        judge(Accuracy(), torch.randn(4, 1), torch.ones(4, dtype=torch.int64))


def test_sums_of_another_length_are_refused():
    @dataclass(frozen=True)
    class Wrong(Metric):
        name, size, higher_is_better = "wrong", 3, True

        def sums(self, output, y):
            return [1.0, 2.0]

        def value(self, sums):
            return 0.0

    with pytest.raises(ValueError, match=r"metric 'wrong' gave sums of shape \(2,\); expected \(3,\)"):
        checked_sums(Wrong(), LOGITS, RIGHT)


@pytest.mark.parametrize("metrics", [["accuracy", "loss", "f1:3", "class_accuracy:3"]])
def test_metrics_do_not_depend_on_the_number_of_workers(metrics):
    task = Task("t", lambda: nn.Linear(8, 3), metrics=metrics, eval_batch=7)
    tests = [[e.test for e in fedavg.train(toy_plan(task=task, data=toy_data(), workers=n)) if e.round] for n in (1, 2)]
    assert tests[0] == tests[1]
    assert {"class_accuracy", "class_accuracy.0", "f1"} <= set(tests[0][0])


def test_text_makes_the_metric():
    assert make_metric("f1:classes=10") == MacroF1(10)
    assert make_metric("auc") == AUC(100)
