import numpy as np
import pytest
import torch

from fedavg import ArrayData, Examples, train
from toys import COUNTS, SLOPES, line_plan


def states_after(plan):
    return [event.state for event in train(plan)]


@pytest.mark.parametrize("engine", ["graph", "plain"])
@pytest.mark.parametrize("C", [1, 0])
def test_rounds_by_hand(engine, C):
    """Two steps a round at eta = 0.1; of the two clients both take part, or one in each round."""
    alpha, eta, w, h, g = 0.5, 0.1, 2.0, 0.0, [0.0, 0.0]
    events = list(train(line_plan(algorithm="feddyn:0.5", engine=engine, rounds=4, C=C)))
    for event in events[1:]:
        cohort = [0, 1] if C else [0 if event.examples == COUNTS[0] else 1]
        changes = {}
        for k in cohort:
            end = w
            for _step in range(2):
                end -= eta * (SLOPES[k](end) - g[k] + alpha * (end - w))
            changes[k] = end - w
            g[k] -= alpha * changes[k]
        mean = sum(COUNTS[k] * change for k, change in changes.items()) / sum(COUNTS[k] for k in cohort)
        h -= alpha * len(cohort) / 2 * mean
        w = w + mean - h / alpha
        assert float(event.state.weights) == pytest.approx(w, rel=1e-5)
        assert float(event.state.slots["h"]) == pytest.approx(h, rel=1e-4, abs=1e-6)


def test_it_goes_to_the_optimum_of_all_where_fedprox_stays_off():
    """Clients' own optima are 1 and 1/4; of the sum it is 0.4 (`line_of_equals`)."""
    changes = {"E": 30, "rounds": 200, "data": line_of_equals()}
    ends = {
        name: float(states_after(line_plan(algorithm=name, **changes))[-1].weights)
        for name in ("feddyn:1.0", "fedprox:1.0")
    }
    best = 0.4
    assert ends["feddyn:1.0"] == pytest.approx(best, abs=1e-3)
    assert abs(ends["fedprox:1.0"] - best) > 0.01


def line_of_equals():
    """Two clients of one example each: F_0 = (w - 1)², F_1 = (2 w - 0.5)²; 2 (w - 1) + 4 (2 w - 0.5) = 0 at 0.4."""
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 0.5])
    return ArrayData("equals", x, y, [np.array([0]), np.array([1])], Examples(x, y))
