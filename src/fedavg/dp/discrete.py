"""Discrete Gaussian noise by integer arithmetic only, for values that are summed in a ring of integers.

The sampler is that of Canonne, Kamath and Steinke (2020, Algorithms 1 to 3), over whole arrays at a time. Once
sigma is a fraction, no floating-point number is involved, so the distribution is exact as far as the generator's bits
are uniform and independent: Philox is a good generator, but not a cryptographic one. The time of a call depends
on what is drawn.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

#: Sigma is rounded up to a multiple of 1/64 below this, and to a whole number above: then all products fit in int64.
FINE_UP_TO: Final = 64
FINENESS: Final = 64
MOST_SIGMA: Final = 2**24


def discrete_gaussian(sigma: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` integers, int64, each x with probability proportional to exp(-x²/(2 sigma²)); sigma is rounded up."""
    exact = as_fraction(sigma)
    return _until_full(size, lambda count: _gaussian_tries(exact, count, rng))


def as_fraction(sigma: float) -> Fraction:
    """The standard deviation that is actually used: never less than requested."""
    if not 0 < sigma <= MOST_SIGMA:
        raise ValueError(f"sigma is {sigma}; expected a number above 0 and at most {MOST_SIGMA}")
    return Fraction(ceil(sigma * FINENESS), FINENESS) if sigma < FINE_UP_TO else Fraction(ceil(sigma))


def _until_full(size: int, tries: Callable[[int], np.ndarray]) -> np.ndarray:
    """Accepted values of a rejection sampler, until there are enough."""
    found = np.empty(0, np.int64)
    while len(found) < size:
        missing = size - len(found)
        found = np.concatenate([found, tries(missing + missing // 2 + 16)])
    return found[:size]


def _gaussian_tries(sigma: Fraction, count: int, rng: np.random.Generator) -> np.ndarray:
    """Laplace of scale t = ⌊sigma⌋ + 1, of which y is kept with probability exp(-(|y| - sigma²/t)²/(2 sigma²))."""
    t = int(sigma) + 1
    y = _until_full(count, lambda n: _laplace_tries(t, n, rng))
    a, b = sigma.numerator, sigma.denominator
    # With sigma = a/b the exponent is (|y| t b² - a²)² / (2 (a b t)²) = (p/d)²/2.
    p, d = np.abs(np.abs(y) * (t * b * b) - a * a), a * b * t
    whole, rest = np.divmod(p, d)
    # (whole + rest/d)²/2 = whole²/2 + whole rest/d + (rest/d)²/2: a product of exponentials of fractions below 1.
    keep = _bernoulli_power(whole * whole, np.full(count, 1), 2, rng)
    keep &= _bernoulli_power(whole, rest, d, rng)
    keep &= _bernoulli_square(rest, d, rng)
    kept: np.ndarray = y[keep]
    return kept


def _laplace_tries(t: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers with probability proportional to exp(-|x|/t); a negative zero is rejected."""
    low = _until_full(count, lambda n: _exponential_tries(t, n, rng))
    magnitude = low + t * _geometric(count, rng)
    negative = rng.integers(0, 2, count).astype(bool)
    signed: np.ndarray = np.where(negative, -magnitude, magnitude)[~(negative & (magnitude == 0))]
    return signed


def _exponential_tries(t: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers u in [0, t) with probability proportional to exp(-u/t)."""
    u = rng.integers(0, t, count)
    kept: np.ndarray = u[_bernoulli_exp(u, t, rng)]
    return kept


def _geometric(count: int, rng: np.random.Generator) -> np.ndarray:
    """How often in a row a coin that shows heads with probability exp(-1) shows heads."""
    heads = np.zeros(count, np.int64)
    active = np.arange(count)
    while len(active):
        active = active[_bernoulli_exp(np.ones(len(active), np.int64), 1, rng)]
        heads[active] += 1
    return heads


def _bernoulli_power(
    times: np.ndarray, numerator: np.ndarray, denominator: int, rng: np.random.Generator
) -> np.ndarray:
    """True with probability exp(-numerator/denominator)^times, for fractions of at most 1."""
    alive = np.ones(len(times), bool)
    done = 0
    while len(active := np.flatnonzero(alive & (times > done))):
        alive[active] = _bernoulli_exp(numerator[active], denominator, rng)
        done += 1
    return alive


def _bernoulli_square(numerator: np.ndarray, denominator: int, rng: np.random.Generator) -> np.ndarray:
    """True with probability exp(-(numerator/denominator)²/2)."""

    def coin(at: np.ndarray, k: int) -> np.ndarray:
        # (n/d)²/(2k) as three coins in a row, since the square of d does not fit in 64 bits
        first = rng.integers(0, denominator, len(at)) < numerator[at]
        second = rng.integers(0, denominator, len(at)) < numerator[at]
        heads: np.ndarray = first & second & (rng.integers(0, 2 * k, len(at)) == 0)
        return heads

    return _series(len(numerator), coin)


def _bernoulli_exp(numerator: np.ndarray, denominator: int, rng: np.random.Generator) -> np.ndarray:
    """True with probability exp(-numerator/denominator), for fractions of at most 1."""
    return _series(len(numerator), lambda at, k: rng.integers(0, denominator * k, len(at)) < numerator[at])


def _series(count: int, coin: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """With coins of probability g/k, k = 1, 2, ..., until one fails: that k is odd with probability exp(-g)."""
    result = np.empty(count, bool)
    active, k = np.arange(count), 1
    while len(active):
        heads = coin(active, k)
        result[active[~heads]] = k % 2 == 1
        active, k = active[heads], k + 1
    return result
