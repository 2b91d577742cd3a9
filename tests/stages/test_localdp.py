import numpy as np
import pytest
import torch

from fedavg import Update, Work, train
from fedavg.dp.accounting import EveryRound, epsilon
from fedavg.errors import PlanError
from fedavg.stages import make_stage
from toys import toy_plan

WORK = Work(round=1, epochs=1, batch=10, lr=0.1)


def test_one_update_costs_what_was_asked_for():
    stage = make_stage("localdp:2:0.5:delta=1e-5")
    assert epsilon(EveryRound(), stage.multiplier, 1, 1e-5, "pld") == pytest.approx(2, rel=2e-3)


def test_below_epsilon_1_it_needs_less_than_the_classic_formula_of_nbafl():
    """σ = Δ √(2 ln(1.25/δ)) / ε with Δ twice the norm: 2 · 4.844805 / 0.5 for δ = 1e-5."""
    classic = 2 * 4.844805 / 0.5
    assert 0.7 * classic < make_stage("localdp:0.5:1.0").multiplier < classic


def test_an_update_is_clipped_and_noised_at_home():
    stage = make_stage("localdp:8:0.5")
    n = 40_000
    far = Update(torch.full((n,), 100.0), 1.0, {"train_loss": 3.0})
    sent = stage.on_client(far, WORK, np.random.default_rng(0))
    expected = 0.5 / n**0.5
    assert float(sent.vector.mean()) == pytest.approx(expected, abs=5 * stage.multiplier * 0.5 / n**0.5)
    assert float(sent.vector.std()) == pytest.approx(stage.multiplier * 0.5, rel=5 * (0.5 / n) ** 0.5)
    assert sent.metrics == {}


def test_a_run_charges_a_client_for_every_round():
    events = list(train(toy_plan(stages=("weigh:equal", "localdp:50:1.0"), dp_delta=1e-5, rounds=3)))[1:]
    assert events[0].epsilon == pytest.approx(50, rel=0.1)
    assert events[0].epsilon < events[1].epsilon < events[2].epsilon
    assert events[2].ledger["sampling"] == "every round"
    assert events[2].ledger["relation"] == "replace one client"


@pytest.mark.parametrize("text", ["localdp", "localdp:1", "localdp:0:1", "localdp:1:0", "localdp:1:1:delta=0"])
def test_bad_settings_are_refused(text):
    with pytest.raises(PlanError, match="expected"):
        make_stage(text)
