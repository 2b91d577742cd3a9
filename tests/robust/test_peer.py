"""Ours against ByzFL's, value by value, on random updates of which some are far away."""

import numpy as np
import pytest

from byzfl_peer import peer
from fedavg.robust import (
    AdaptiveClipping,
    Bucketing,
    Case,
    CentredClipping,
    GeometricMedian,
    Krum,
    MeanAroundMedian,
    Median,
    MinimumDiameter,
    MultiKrum,
    NearestNeighbourMixing,
    PlainMean,
    Rows,
    StaticClipping,
    TrimmedMean,
)

#: How many clients, and how many of them are faulty: odd and even, one and several.
SIZES = [(5, 1), (10, 2), (11, 4), (14, 4)]


def updates(n: int, faulty: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, 300)) + rng.standard_normal(300)
    values[rng.permutation(n)[:faulty]] *= 10
    return values.astype(np.float32)


def case(faults: int) -> Case:
    return Case(faults, np.random.default_rng(1))


REDUCERS = {
    "Average": (lambda n, f: PlainMean(), lambda theirs, n, f: theirs()),
    "Median": (lambda n, f: Median(), lambda theirs, n, f: theirs()),
    "TrMean": (lambda n, f: TrimmedMean(f), lambda theirs, n, f: theirs(f)),
    "Meamed": (lambda n, f: MeanAroundMedian(f), lambda theirs, n, f: theirs(f)),
    "GeometricMedian": (lambda n, f: GeometricMedian(0.1, 3), lambda theirs, n, f: theirs(0.1, 3)),
    # Theirs sums over n - f - 1 neighbours, ours, as the paper does, over n - f - 2.
    "Krum": (lambda n, f: Krum(f - 1), lambda theirs, n, f: theirs(f)),
    "MultiKrum": (lambda n, f: MultiKrum(f - 1, keep=n - f), lambda theirs, n, f: theirs(f)),
    "CenteredClipping": (lambda n, f: CentredClipping(5.0, 3), lambda theirs, n, f: theirs(L=3, tau=5.0)),
    "MDA": (lambda n, f: MinimumDiameter(f), lambda theirs, n, f: theirs(f)),
}


@pytest.mark.parametrize(("n", "f"), SIZES)
@pytest.mark.parametrize("name", REDUCERS)
def test_a_reducer_gives_the_values_of_byzfl(name, n, f):
    theirs = getattr(peer("aggregators.aggregators"), name)
    for seed in range(3):
        x = updates(n, f, seed)
        ours, make = REDUCERS[name]
        reducer = ours(n, f)
        got = reducer.reduce(Rows.of(list(x)), case(reducer.faults(n)))
        np.testing.assert_allclose(got, make(theirs, n, f)(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


STEPS = {
    "NNM": (lambda f: NearestNeighbourMixing(f), lambda theirs, f: theirs(f)),
    "Clipping": (lambda f: StaticClipping(12.0), lambda theirs, f: theirs(12.0)),
    "ARC": (lambda f: AdaptiveClipping(f), lambda theirs, f: theirs(f)),
}


@pytest.mark.parametrize(("n", "f"), SIZES)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_before_it_gives_the_values_of_byzfl(name, n, f):
    theirs = getattr(peer("aggregators.preaggregators"), name)
    x = updates(n, f)
    ours, make = STEPS[name]
    rows = Rows.of(list(x))
    got = rows.mixed(ours(f).mix(rows, case(f)))
    expected = np.array(make(theirs, f)(x.astype(np.float64)))
    np.testing.assert_allclose(np.hstack([tile for _, tile in got.tiles()]), expected, rtol=1e-5, atol=1e-5)


def test_buckets_are_those_of_byzfl_for_the_same_order(monkeypatch):
    theirs = peer("aggregators.preaggregators").Bucketing
    x = updates(11, 2)
    order = np.random.default_rng(1).permutation(11)
    monkeypatch.setattr(np.random, "permutation", lambda values: values[order])
    rows = Rows.of(list(x))
    got = rows.mixed(Bucketing(3).mix(rows, case(0)))
    expected = theirs(3)(x.astype(np.float64))
    np.testing.assert_allclose(np.hstack([tile for _, tile in got.tiles()]), expected, rtol=1e-5, atol=1e-5)
