import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedavg.bench.floor import RecordProducts, products_of_step, steps_by_length
from fedavg.cli import cli
from fedavg.engine import plain
from fedavg.engine.trainer import Trainer
from fedavg.tasks import TASKS, lstm_native
from fedavg.types import Examples
from toys import TOY, blobs


def products(task, x, y):
    trainer = Trainer(TASKS.get(task, TOY), seed=0)
    with RecordProducts() as record:
        plain.gradients(trainer.model, Examples(x, y))
    return [func._schema.name.removeprefix("aten::") for func, _, _ in record.calls]


def test_the_products_of_the_two_mnist_models():
    """2NN: three forward, three for the weights, two for the inputs. CNN: two convolutions, two layers."""
    y = torch.zeros(10, dtype=torch.int64)
    two_nn = products("mnist-2nn", torch.rand(10, 784), y)
    assert sorted(two_nn) == ["addmm"] * 3 + ["mm"] * 5
    cnn = products("mnist-cnn", torch.rand(10, 1, 28, 28), y)
    assert sorted(cnn) == ["addmm"] * 2 + ["convolution"] * 2 + ["convolution_backward"] * 2 + ["mm"] * 4


def test_products_inside_our_own_operators_count(monkeypatch):
    """Two layers of 80 steps: 79 recurrent products forward and back, the first step starting from zero."""
    monkeypatch.setattr(lstm_native, "fits", lambda x, units: False)  # the loop in C cannot be looked into
    x = torch.randint(0, 258, (2, 80))
    names = products("shakespeare-lstm", x, x)
    assert 2 * 2 * 79 <= len(names) <= 2 * 2 * 80 + 20


def test_the_floor_runs_nothing_but_products():
    trainer = Trainer(TOY, seed=0)
    before = trainer.weights.clone()
    run = products_of_step(trainer, Examples(*blobs(4, seed=0)))
    run(3)
    assert torch.equal(trainer.weights, before)


def test_the_floor_counts_short_last_batches():
    """20 in batches of 10: two; 24: two and one of 4; 3: one of 3. On average over the three clients."""
    assert steps_by_length(np.array([20, 24, 3]), 10) == {3: 1 / 3, 4: 1 / 3, 10: 4 / 3}
    assert steps_by_length(np.array([20, 24]), float("inf")) == {20: 0.5, 24: 0.5}


@pytest.mark.alone
def test_bench_reports_in_json():
    result = CliRunner().invoke(cli, ["bench", "W1", "--rounds", "3", "--repeats", "1", "--workers", "1", "--json"])
    report = json.loads(result.stdout)
    assert report["workload"] == "W1"
    assert report["plain"]["s_per_round"] > 0
    assert report["plain_cpu_ratio"] > 0.5
    assert report["workers"] == 1
    assert 0 < report["floor_s_per_round"] < 10
    assert report["s_per_round"] > 0.5 * report["floor_s_per_round"]
    assert 0.5 < report["startup_s"] < 60
    assert 100 < report["peak_rss_mb"] < 4000


def test_an_unknown_workload_is_named():
    from fedavg.errors import PlanError

    result = CliRunner().invoke(cli, ["bench", "W11"])
    assert isinstance(result.exception, PlanError)
    assert "unknown workload 'W11'; expected one of W1, W2, W3, W4, W5" in str(result.exception)
