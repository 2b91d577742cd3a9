import numpy as np
import pytest
import torch

from fedavg import Sum, Update, Work, train
from fedavg.errors import Diverged, PlanError
from fedavg.setup import simulation
from fedavg.stages import make_stage
from toys import toy_plan

WORK = Work(round=1, epochs=1, batch=10, lr=0.1)
SIZE = 40_000
#: Five standard deviations of the sample variance of so many normal numbers.
TOLERANCE = 5 * (2 / SIZE) ** 0.5


def noise(text, clip="clip:0.5", **changes):
    """A noise stage as it is in a plan; three of five clients take part in a round."""
    return simulation(toy_plan(stages=(clip, "weigh:equal", text), **changes))[0].stages[-1]


def variance(vector):
    return float(vector.double().var())


def silence(count):
    return Sum(torch.zeros(SIZE, dtype=torch.float64), weight=count, count=count)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_server_s_noise_is_z_times_the_norm_whoever_comes(count):
    total = noise("noise:2.0").on_sum(silence(count), WORK, np.random.default_rng(1))
    assert variance(total.vector) == pytest.approx(1.0, rel=TOLERANCE)
    assert abs(float(total.vector.mean())) < 5 / SIZE**0.5


def client_noise(stage, weight=1.0, seed=2):
    return stage.on_client(Update(torch.zeros(SIZE), weight, {"train_loss": 1}), WORK, np.random.default_rng(seed))


def test_a_client_s_share():
    stage = noise("noise:2.0:where=clients")
    share = client_noise(stage)
    assert variance(share.vector) == pytest.approx(1 / 3, rel=TOLERANCE)
    assert share.metrics == {}, "what is not noised stays at home"
    assert stage.on_sum(silence(3), WORK, np.random.default_rng(1)).vector.abs().sum() == 0


def test_shares_do_not_shrink_with_the_weight():
    stage = noise("noise:2.0:where=clients")
    assert variance(0.25 * client_noise(stage, weight=0.25).vector) == pytest.approx(1 / 3, rel=TOLERANCE)


@pytest.mark.parametrize(("text", "count", "missing"), [
    ("noise:2.0:where=clients", 2, 1 / 3),
    ("noise:2.0:where=clients", 0, 1),
    ("noise:2.0:where=clients:dropout=0.5", 2, 0),
    ("noise:2.0:where=clients:dropout=0.5", 1, 1 / 3),
])  # fmt: skip
def test_what_lost_clients_did_not_add_is_added_by_the_server(text, count, missing):
    total = noise(text).on_sum(silence(count), WORK, np.random.default_rng(1))
    assert variance(total.vector) == pytest.approx(missing, rel=TOLERANCE)


def test_shares_for_dropout_make_up_the_whole_noise_from_fewer_clients():
    assert variance(client_noise(noise("noise:2.0:where=clients:dropout=0.5")).vector) == pytest.approx(
        1 / 1.5, rel=TOLERANCE
    )


def test_the_sum_of_the_shares_has_the_full_noise():
    stage = noise("noise:2.0:where=clients:bits=12", clip="clip:0.5")
    total = sum(client_noise(stage, seed=seed).vector.double() for seed in range(3))
    bound = 0.5 + 2.0**-12 * SIZE**0.5 / 2
    assert variance(total) == pytest.approx((2 * bound) ** 2, rel=TOLERANCE)


@pytest.mark.parametrize("where", ["server", "clients"])
def test_with_bits_everything_is_a_multiple_of_the_grid(where):
    stage = noise(f"noise:1.0:bits=10:where={where}")
    vector = torch.linspace(-0.01, 0.01, SIZE)
    sent = stage.on_client(Update(vector, 1.0), WORK, np.random.default_rng(1)).vector
    total = stage.on_sum(Sum(sent.double(), 1.0, 1), WORK, np.random.default_rng(2)).vector
    for each in (sent, total):
        units = each.double() * 2**10
        assert torch.equal(units, units.round())
    if where == "server":
        assert float((sent - vector).abs().max()) <= 2.0**-11 * (1 + 1e-6)


def test_too_many_bits_for_the_numbers_are_noticed():
    with pytest.raises(Diverged, match="more than 24 bits at bits=20; use fewer bits"):
        noise("noise:1.0:bits=20").on_client(Update(torch.full((4,), 100.0), 1.0), WORK, np.random.default_rng(1))


def weights_after(**changes):
    *_, last = train(toy_plan(stages=("clip:0.5", "weigh:equal", "noise:0.5"), **changes))
    return last.state.weights


def test_seeded_noise_repeats_and_the_system_s_does_not():
    assert torch.equal(weights_after(workers=1), weights_after(workers=2))
    assert not torch.equal(weights_after(seed=0), weights_after(seed=1))
    assert not torch.equal(weights_after(noise_source="os"), weights_after(noise_source="os"))


def test_client_noise_in_a_run_does_not_depend_on_the_workers():
    stages = ("clip:0.5:quantile=0.5", "weigh:equal", "noise:0.5:where=clients:bits=12")
    ends = [list(train(toy_plan(stages=stages, workers=n)))[-1].state for n in (1, 3)]
    assert torch.equal(ends[0].weights, ends[1].weights)
    assert ends[0].others == ends[1].others


def test_the_model_moves_by_the_noise_over_the_denominator():
    """Updates clipped to next to nothing: what is left is z S / m in every coordinate, here 1e3 * 1e-6 / 3."""
    start, first, *_ = train(toy_plan(stages=("clip:1e-6", "weigh:equal", "noise:1000"), rounds=1))
    moved = (first.state.weights - start.state.weights).double()
    assert float(moved.std()) == pytest.approx(1e-3 / 3, rel=5 * (1 / (2 * 195)) ** 0.5)


@pytest.mark.parametrize("text", ["noise", "noise:0", "noise:nan", "noise:1:where=moon", "noise:1:dropout=1",
                                  "noise:1:bits=23", "noise:1:bits=-1", "noise:1:clip=3"])  # fmt: skip
def test_bad_settings_are_refused(text):
    with pytest.raises(PlanError, match="expected"):
        make_stage(text)
