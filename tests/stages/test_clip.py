from dataclasses import replace
from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import Sum, Update, Work, train
from fedavg.cohorts import eligible
from fedavg.draft import Draft
from fedavg.errors import PlanError
from fedavg.samplers import make_sampler
from fedavg.setup import population_of, simulation
from fedavg.stages import make_stage
from fedavg.stages.clip import NORM, Clip, shortened
from toys import toy_plan

RNG = np.random.default_rng(0)
WORK = Work(round=1, epochs=1, batch=10, lr=0.1)


def test_by_hand():
    """(3, 4) has norm 5: clipped to 1 it is (0.6, 0.8)."""
    clipped = Clip(1.0).on_client(Update(torch.tensor([3.0, 4.0]), weight=7), WORK, RNG)
    assert clipped.vector.tolist() == pytest.approx([0.6, 0.8])
    assert clipped.weight == 7


def test_a_short_update_passes_unchanged():
    update = Update(torch.tensor([0.3, 0.4]), weight=7)
    assert Clip(1.0).on_client(update, WORK, RNG).vector is update.vector


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_the_bound_is_never_exceeded(values, norm):
    clipped = Clip(norm).on_client(Update(torch.tensor(values), weight=1), WORK, RNG)
    assert float(clipped.vector.double().norm()) <= norm * (1 + 1e-6)


def test_the_sum_is_left_alone():
    total = Sum(torch.ones(2), weight=2, count=2)
    assert Clip(1.0).on_sum(total, WORK, RNG) is total


@pytest.mark.parametrize("text", ["clip", "clip:", "clip:far", "clip:0", "clip:-1", "clip:nan", "clip:inf", "shrink:1"])
def test_a_bad_stage_is_refused(text):
    with pytest.raises(PlanError, match="expected"):
        make_stage(text)


@pytest.mark.parametrize(
    "text",
    ["clip:1:per=row", "clip:1:quantile=1", "clip:1:quantile=-0.1", "clip:1:rate=0", "clip:1:per=layer:quantile=0.5"],
)
def test_bad_settings_are_refused(text):
    with pytest.raises(PlanError, match="clip: .*expected"):
        make_stage(text)


def bound_clip(*stages, **changes):
    return simulation(toy_plan(stages=stages, **changes))[0].stages[0]


def test_clipping_by_layer_by_hand():
    """Two layers of 8 x 16 + 16 and 16 x 3 + 3 numbers, each to 1/√2."""
    clip = bound_clip("clip:1.0:per=layer")
    assert clip.layers == ((0, 144), (144, 195))
    vector = torch.cat([torch.full((144,), 2.0), torch.full((51,), 1e-3)])
    clipped = clip.on_client(Update(vector, weight=1), WORK, RNG).vector
    assert float(clipped[:144].norm()) == pytest.approx(0.5**0.5)
    assert torch.equal(clipped[144:], vector[144:])
    assert clip.sensitivity(WORK) == 1.0


def test_layers_are_counted_once_for_each_vector_that_an_update_has():
    setup, data = simulation(toy_plan(stages=("clip:1.0:per=layer",)))

    class Two(type(setup.algorithm)):
        vectors_up = 2

    draft = Draft(
        plan=setup.plan,
        task=setup.task,
        algorithm=Two(),
        codec=setup.codec,
        stages=setup.stages,
        sampler=make_sampler("fixed"),
        secagg=None,
        population=population_of(data),
        test=data.test,
    )
    both = setup.stages[0].bind(draft)
    assert both.layers == ((0, 144), (144, 195), (195, 339), (339, 390))


def at(norm):
    return replace(WORK, settings={NORM: norm})


def test_a_client_appends_whether_it_was_within_the_norm():
    clip = bound_clip("clip:1.0:quantile=0.5")
    inside = clip.on_client(Update(torch.tensor([0.3, 0.3]), weight=1), at(0.5), RNG).vector
    outside = clip.on_client(Update(torch.tensor([3.0, 4.0]), weight=1), at(0.5), RNG).vector
    assert inside.tolist() == pytest.approx([0.3, 0.3, 0.25])
    assert outside.tolist() == pytest.approx([0.3, 0.4, -0.25])


def test_the_norm_follows_the_quantile_by_hand():
    """3 of 4 clients within the norm, the median wanted: norm · exp(-0.2 (0.75 - 0.5))."""
    clip = bound_clip("clip:2.0:quantile=0.5")
    slots = clip.initial()
    assert clip.settings(slots) == {NORM: 2.0}
    unit = 2.0
    total = Sum(torch.tensor([1.0, 1.0, (3 - 1) / 2 * unit]), weight=4, count=4)
    stripped = clip.on_sum(total, at(2.0), RNG)
    assert stripped.vector.tolist() == [1.0, 1.0]
    after = clip.after(slots, stripped, at(2.0))
    assert clip.settings(after)[NORM] == pytest.approx(2.0 * exp(-0.2 * 0.25))


@given(st.floats(0.1, 5), st.floats(1.01, 50), st.floats(1e-3, 1e3))
def test_the_split_of_the_noise_is_that_of_the_paper(z, ratio, norm):
    """Andrew et al. 2021: z_Δ = (z⁻² - (2σ_b)⁻²)^-½ on the change, and σ_b on the count, together cost z."""
    sigma = z / 2 * ratio
    clip = Clip(norm, quantile=0.5, bits_noise=sigma, multiplier=z)
    std = z * clip.sensitivity(at(norm))
    on_change = (z**-2 - (2 * sigma) ** -2) ** -0.5
    assert std == pytest.approx(on_change * norm, rel=1e-9)
    assert std / clip._unit(at(norm)) == pytest.approx(sigma, rel=1e-9)


def test_too_little_noise_on_the_count_is_refused():
    with pytest.raises(PlanError, match="bits_noise is 0.4; expected more than half of the noise multiplier 1"):
        bound_clip("clip:1.0:quantile=0.5:bits_noise=0.4", "weigh:equal", "noise:1.0")


def test_the_norm_finds_the_median_of_the_updates_norms():
    """Without noise, from far off: in the end about half of the clients are within the norm."""
    *_, last = train(toy_plan(stages=("clip:100:quantile=0.5:rate=0.5",), C=1, rounds=40, lr=0.01))
    norm = float(last.state.others["stage 0"][NORM])
    *_, unclipped = train(toy_plan(C=1, rounds=40, lr=0.01))
    lengths = update_lengths(unclipped.state.weights, lr=0.01)
    assert min(lengths) < norm < max(lengths)


def update_lengths(weights, lr):
    from fedavg.client import Client

    plan = toy_plan(lr=lr)
    setup, data = simulation(plan)
    trainer = setup.new_trainer(data.client(0))
    lengths = []
    for k in eligible(population_of(data)):
        client = Client(int(k), data.client(int(k)), trainer, 0, 40, {})
        lengths.append(float(setup.algorithm.client_update(client, weights, plan.work(40)).vector.norm()))
    return lengths


def test_what_arrives_is_bounded_again():
    """A client that lies about its norm, and about whether it was within it."""
    clip = bound_clip("clip:1.0", "weigh:equal", "noise:1.0")
    assert float(clip.on_arrival(Update(torch.full((195,), 9.0), 1), WORK).vector.norm()) == pytest.approx(1.0)
    adaptive = bound_clip("clip:1.0:quantile=0.5", "weigh:equal", "noise:1.0")
    arrived = adaptive.on_arrival(Update(torch.full((196,), 9.0), 1), at(1.0)).vector
    assert float(arrived.norm()) <= adaptive.sensitivity(at(1.0)) * (1 + 1e-6)


def test_noised_updates_pass_as_they_are():
    clip = bound_clip("clip:1.0", "weigh:equal", "noise:1.0:where=clients")
    update = Update(torch.full((195,), 9.0), 1)
    assert clip.on_arrival(update, WORK) is update


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30), st.floats(1e-2, 1e2))
def test_clipping_twice_changes_nothing(values, norm):
    once = shortened(torch.tensor(values), norm)
    assert float(once.double().norm()) <= norm
    assert shortened(once, norm) is once
