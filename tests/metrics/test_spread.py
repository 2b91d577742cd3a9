import doctest

import pytest
import torch

from fedavg.metrics import Accuracy, MacroF1
from fedavg.metrics import goal as goal_module
from fedavg.metrics import spread as spread_module
from fedavg.metrics.spread import describe, names_of_sums, spread_of, worst_of


def test_the_worst_decile_is_on_the_bad_side():
    values = [float(v) for v in range(20)]
    assert describe(values, True)["worst_decile"] == (0 + 1) / 2
    assert describe(values, False)["worst_decile"] == (19 + 18) / 2
    assert "worst_decile" not in describe(values, None)
    assert describe([3.0], False) == {"p10": 3, "p50": 3, "p90": 3, "variance": 0, "worst_decile": 3}


def test_clients_count_once_each_and_those_without_predictions_not_at_all():
    """Accuracies 1/1, 0/3 and of nothing: mean over clients 1/2, whatever their sizes."""
    sums = [{"accuracy": torch.tensor(pair, dtype=torch.float64)} for pair in ([1, 1], [0, 3], [0, 0])]
    found = spread_of({"accuracy": Accuracy()}, sums)["accuracy"]
    assert (found["p50"], found["variance"]) == (0.5, 0.25)


def test_who_fares_worst_is_named_the_worst_first():
    sums = [{"accuracy": torch.tensor(pair, dtype=torch.float64)} for pair in ([3, 4], [0, 0], [1, 4], [1, 4])]
    assert worst_of({"accuracy": Accuracy()}, [7, 8, 9, 2], sums) == {
        "accuracy": {"client": [2, 9, 7], "value": [0.25, 0.25, 0.75]}
    }


def test_sums_have_names():
    assert names_of_sums({"a": Accuracy(), "f": MacroF1(1)}) == ["a.0", "a.1", "f.0", "f.1", "f.2"]


@pytest.mark.parametrize("module", [goal_module, spread_module])
def test_the_examples_in_the_docs_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
