"""Noise that clients add to masked updates: what comes out of the ring has all of it, or the plan is refused."""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedavg import Stage, Sum, Work, train
from fedavg.errors import PlanError
from fedavg.secagg import Encoding
from fedavg.secagg.options import make_masking
from fedavg.setup import simulation
from fedavg.stages.clip import NORM
from fedavg.stages.stage import Mechanism
from toys import toy_data, toy_plan

#: Updates clipped to next to nothing: what is left is noise, 1 in standard deviation on the sum.
ONLY_NOISE = ("clip:1e-6", "weigh:equal", "noise:1e6:where=clients")
NUMBERS = 195


def noisy_plan(clients, secagg, **changes):
    """All clients in every round; each adds 1/√clients."""
    data = toy_data((4,) * clients)
    values = {"data": data, "C": 1, "stages": ONLY_NOISE, "secagg": secagg, "dp_delta": 1e-3, "E": 1, "rounds": 6}
    return toy_plan(**values | changes)


def spread(plan):
    """The standard deviation of what the rounds moved the model by, as a sum over the cohort."""
    states = [event.state.weights.double() for event in train(plan)]
    moved = torch.stack([after - before for before, after in pairwise(states)])
    return float(moved.std()) * simulation(plan)[0].stages[1].denominator


def test_a_range_near_to_the_noise_is_refused_with_one_that_would_do():
    """Each of 9 adds 1/3: the sum's noise reaches 12, or 4/3 for each."""
    with pytest.raises(PlanError, match=r"clip x cap is 0.1, too near to the noise; expected at least 1.333") as caught:
        next(train(noisy_plan(9, "complete:0.1:1")))
    enough = re.search(r"use a clip of ([\d.]+) or more", str(caught.value)).group(1)
    assert float(enough) == 1.4
    plan = noisy_plan(9, f"complete:{enough}:1")
    assert spread(plan) == pytest.approx(1, rel=5 * (2 * 6 * NUMBERS) ** -0.5)


def test_values_far_beyond_the_clip_range_keep_their_noise():
    """Each of 400 adds noise of 0.5 to a clip of 0.3, which would cut most of it; the sum has all: 0.5 · √400 = 10."""
    encoding = Encoding(400, 5000, clip=0.3, weight_cap=1, wraps=True)
    rng = np.random.default_rng(1)
    total = np.zeros(encoding.length, encoding.dtype)
    plain = np.zeros(5000)
    for _ in range(400):
        vector = rng.normal(scale=0.5, size=5000)
        plain += vector
        encoded = encoding.encode(vector, 1)
        assert encoded.saturated == 0
        total += encoded.ring
    decoded = encoding.decode(total, 400).vector
    assert np.abs(decoded - plain).max() < 400 * 2.0**-encoding.fraction_bits
    assert decoded.std() == pytest.approx(10, rel=5 * 10000**-0.5)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_wrapping_is_exact_modulo_the_ring(bits):
    encoding = Encoding(2, 6, clip=1.0, weight_cap=1, bits=bits, wraps=True)
    step = 2.0**-encoding.fraction_bits
    units = np.array([-1.0, 1.0, 2.0 ** (bits - 1), -(2.0 ** (bits - 1)), 3 * 2.0 ** (bits - 1), -(2.0**bits)])
    ring = encoding.encode(units * step, 1).ring[:6]
    assert [int(x) for x in ring] == [int(u) % 2**bits for u in units]


def test_noise_that_the_ring_would_round_away_is_refused():
    """16 bits for 9 clients and a range of 3,000: steps of 1 against noise of 1/3."""
    with pytest.raises(PlanError, match=r"the ring has steps of 1, which would round the noise away.*bits=64"):
        next(train(noisy_plan(9, "complete:3000:1:bits=16")))
    stages = ("clip:0.1", "weigh:equal", "noise:1:where=clients:bits=22")
    with pytest.raises(PlanError, match=r"which would round the noise away; expected at most 2.384e-07"):
        next(train(noisy_plan(9, "complete:4000:1", stages=stages)))


def test_so_few_clients_that_noise_is_missing_are_refused():
    masking = simulation(noisy_plan(9, "complete:4:1"))[0].secagg
    with pytest.raises(PlanError, match="secagg with 5 clients: only 9 of them together carry the noise"):
        masking.check(5)
    stages = (*ONLY_NOISE[:2], "noise:1e6:where=clients:dropout=0.5")
    assert simulation(noisy_plan(9, "complete:4:1", stages=stages))[0].secagg.check(5) is None
    terms = masking.terms(bytes(16), 1, "00" * 32, 12, 3, ())
    assert (terms.topology.threshold, terms.topology.minimum) == (9, 9)
    assert make_masking("complete:4:1").terms(bytes(16), 1, "00" * 32, 12, 3, ()).least == 0


def test_a_norm_that_adapts_stays_within_what_the_ring_holds():
    stages = ("clip:0.5:quantile=0.5", "weigh:equal", "noise:1:where=clients")
    clip = simulation(noisy_plan(9, "complete:12:1", stages=stages))[0].stages[0]
    least, largest = clip.norms
    assert 0 < least < 0.5 < largest < 12
    kept = clip.initial()
    for fraction, limit in ((-0.5, largest), (0.5, least)):
        for _ in range(200):
            work = Work(1, 1, 10, 0.1, settings=clip.settings(kept))
            kept = clip.after(kept, _counted(fraction), work)
        assert float(kept[NORM]) == pytest.approx(limit)


def _counted(fraction):
    return Sum(torch.zeros(1), 1.0, 1, {"clip.below": fraction})


@dataclass(frozen=True)
class Undeclared(Stage):
    """Says that clients add its noise together, but not how much each of them adds."""

    @property
    def mechanism(self):
        return Mechanism("own", 1.0, "clients")


def test_a_stage_of_ones_own_that_does_not_say_its_share_is_told_so():
    """Before, the ring was made for another stage's noise, or the search for one ended in a StopIteration."""
    plan = noisy_plan(9, "complete:4:1", stages=("clip:1", "weigh:equal", Undeclared()))
    with pytest.raises(PlanError, match=r"clients add its noise together; expected methods `share` and `least`"):
        next(train(plan))
