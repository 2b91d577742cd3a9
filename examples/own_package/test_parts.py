"""The checks that fedavg makes of its own parts, made of these."""

from own_package.algorithms import Smoothed
from own_package.codecs import Signs
from own_package.metrics import Confidence
from own_package.samplers import LargestFirst

from fedavg.testing import check_algorithm, check_codec, check_metric, check_sampler


def test_the_algorithm() -> None:
    check_algorithm(Smoothed(0.3), rounds=12)


def test_the_codec() -> None:
    check_codec(Signs())


def test_the_sampler() -> None:
    check_sampler(LargestFirst(0.5))


def test_the_metric() -> None:
    check_metric(Confidence())
