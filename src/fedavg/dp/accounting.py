"""How much privacy a run costs, on top of `dp-accounting`: epsilon(delta) from the noise, and the other way round.

The unit of privacy is a client with all of its data. The noise multiplier z is the standard deviation of the noise on
the sum of the cohort's updates, in units of the L2 norm S that each update is clipped to. An epsilon means
nothing without its neighbouring relation: each kind of sampling states its own.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from math import ceil, exp, inf, isfinite, log
from types import ModuleType
from typing import ClassVar, Final, Literal

from fedavg.errors import PlanError

Accountant = Literal["rdp", "pld"]

#: Noise multipliers are searched for up to here, and given to this many decimals, rounded up.
MOST_NOISE: Final = 1e4
NOISE_DECIMALS: Final = 4
MOST_ROUNDS: Final = 10**9
#: In a search, epsilons are clamped between the inverse of this value and this value.
MOST_COST: Final = 1e300


@dataclass(frozen=True)
class PoissonSampling:
    """Each client takes part in a round by its own coin, with probability q. Neighbours: one client more or less."""

    rate: float

    name: ClassVar[str] = "poisson"
    relation: ClassVar[str] = "add or remove one client"


@dataclass(frozen=True)
class FixedSize:
    """m of K clients, drawn without replacement as in Algorithm 1. Neighbours: one client's data is another's."""

    clients: int
    cohort: int

    name: ClassVar[str] = "fixed"
    relation: ClassVar[str] = "replace one client"


@dataclass(frozen=True)
class EveryRound:
    """No sampling to hide in: any observer knows that the client took part, and it may take part every time."""

    name: ClassVar[str] = "every round"
    relation: ClassVar[str] = "replace one client"


Sampling = PoissonSampling | FixedSize | EveryRound


class Spending:
    """Epsilon after any number of rounds of one mechanism, by Rényi DP: the costly part is computed once."""

    def __init__(self, sampling: Sampling, noise_multiplier: float, delta: float) -> None:
        _check(noise_multiplier, delta)
        library = _library()
        relations = library.NeighboringRelation
        relation = relations.REPLACE_ONE if isinstance(sampling, FixedSize) else relations.ADD_OR_REMOVE_ONE
        accountant = library.rdp.RdpAccountant(neighboring_relation=relation)
        with _only_errors_logged():
            accountant.compose(_event(library, sampling, noise_multiplier))
        self._orders, self._rdp, self._delta = accountant.orders, accountant.rdp, delta

    def epsilon(self, rounds: int) -> float:
        """The privacy loss of `rounds` rounds together."""
        if not rounds:
            return 0.0
        rdp = import_module("dp_accounting.rdp.rdp_privacy_accountant")
        return float(rdp.compute_epsilon(self._orders, rounds * self._rdp, self._delta)[0])


@lru_cache
def spending(sampling: Sampling, noise_multiplier: float, delta: float) -> Spending:
    """The same, computed only once in a process."""
    return Spending(sampling, noise_multiplier, delta)


def epsilon(
    sampling: Sampling, noise_multiplier: float, rounds: int, delta: float, accountant: Accountant = "rdp"
) -> float:
    """What `rounds` rounds cost at this delta; infinite without noise."""
    if accountant == "rdp":
        return spending(sampling, noise_multiplier, delta).epsilon(rounds)
    _check(noise_multiplier, delta)
    if isinstance(sampling, FixedSize):
        raise PlanError(
            "accountant 'pld' has no analysis of cohorts of a fixed size; expected 'rdp', or Poisson sampling"
        )
    library = _library()
    ledger = library.pld.PLDAccountant()
    with _only_errors_logged():
        ledger.compose(_event(library, sampling, noise_multiplier), rounds)
    return float(ledger.get_epsilon(delta))


def epsilon_of(releases: Mapping[float, int], delta: float) -> float:
    """What releases of one client's data cost together, this many with each noise multiplier, without any sampling.

    Gaussian mechanisms compose to one: with multipliers z_i, that of (Σ z_i⁻²)^-½.
    """
    precision = sum(count * noise**-2 for noise, count in releases.items())
    return epsilon(EveryRound(), precision**-0.5, 1, delta) if precision else 0.0


def noise_for(target: float, sampling: Sampling, rounds: int, delta: float, accountant: Accountant = "rdp") -> float:
    """The least noise multiplier, rounded up, with which `rounds` rounds cost at most epsilon = `target`."""
    _check_target(target)

    def cost(by: Accountant) -> Callable[[float], float]:
        return cache(lambda noise: epsilon(sampling, noise, rounds, delta, by))

    step = 10.0**-NOISE_DECIMALS
    begin, factor = 1.0, 2.0
    if accountant == "pld":
        # PLD is slow for little noise, and never needs more noise than RDP: its search begins there.
        begin, factor = _noise_of_cost(cost("rdp"), target, begin, factor, precision=0.01), 1.2
    exactly = cost(accountant)
    noise = ceil(_noise_of_cost(exactly, target, begin, factor, step / 4) / step) * step
    return round(noise if exactly(noise) <= target else noise + step, NOISE_DECIMALS)


def rounds_for(
    target: float, sampling: Sampling, noise_multiplier: float, delta: float, accountant: Accountant = "rdp"
) -> int:
    """How many rounds are possible before they cost more than epsilon = `target`; 0 if not even one."""
    _check_target(target)
    if accountant == "rdp":
        cost: Callable[[int], float] = spending(sampling, noise_multiplier, delta).epsilon
        begin = 1
    else:
        cost = lambda rounds: epsilon(sampling, noise_multiplier, rounds, delta, accountant)  # noqa: E731
        begin = max(rounds_for(target, sampling, noise_multiplier, delta), 1)
    low, high = 0, begin
    while cost(high) <= target:
        low, high = high, 2 * high
        if high > MOST_ROUNDS:
            return MOST_ROUNDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= target else (low, middle)
    return low


def gaussian_sigma(target: float, delta: float) -> float:
    """The least noise that makes one release (epsilon, delta)-private, in units of its sensitivity; exact."""
    return float(_library().get_sigma_gaussian(target, delta))


def _noise_of_cost(
    cost: Callable[[float], float], target: float, begin: float, factor: float, precision: float
) -> float:
    """The noise at which `cost` is `target`. On logarithmic scales they are almost linear: few steps suffice."""

    def excess(log_noise: float) -> float:
        return log(min(max(cost(exp(log_noise)), 1 / MOST_COST), MOST_COST) / target)

    low, high = _bracket(excess, log(begin), log(factor))
    return exp(float(import_module("scipy.optimize").brentq(excess, low, high, xtol=precision / exp(high))))


def _bracket(excess: Callable[[float], float], begin: float, width: float) -> tuple[float, float]:
    """Logarithms of too little noise and of enough noise, `width` apart."""
    high = begin
    while excess(high) > 0:
        high += width
        if high > log(MOST_NOISE):
            raise PlanError(f"more than {MOST_NOISE:g} times the norm would be needed as noise; expected a larger "
                            "epsilon or delta, or fewer rounds")  # fmt: skip
    low = high - width
    while excess(low) <= 0:
        low, high = low - width, low
    return low, high


def _event(library: ModuleType, sampling: Sampling, noise_multiplier: float) -> object:
    """One round as an event of dp-accounting."""
    if isinstance(sampling, PoissonSampling):
        return library.PoissonSampledDpEvent(sampling.rate, library.GaussianDpEvent(noise_multiplier))
    # When one client is replaced by another, a sum of vectors of norm S moves by up to 2 S. RDP there takes the
    # multiplier as noise over sensitivity (google/differential-privacy issue 378), so z counts only half.
    gaussian = library.GaussianDpEvent(noise_multiplier / 2)
    if isinstance(sampling, EveryRound):
        return gaussian
    return library.SampledWithoutReplacementDpEvent(sampling.clients, sampling.cohort, gaussian)


def _library() -> ModuleType:
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise PlanError(
            "privacy accounting needs the package dp-accounting, which is not installed; "
            "use: pip install 'fedavg[privacy]'"
        ) from None


@contextmanager
def _only_errors_logged() -> Iterator[None]:
    """RDP orders that do not converge are left out, which is safe; the user need not see a warning for each."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _check(noise_multiplier: float, delta: float) -> None:
    if not (isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise PlanError(f"noise: got {noise_multiplier}; expected a finite number of at least 0")
    if not 0 < delta < 1:
        raise PlanError(f"delta: got {delta}; expected a number above 0 and below 1, such as 1e-6")


def _check_target(target: float) -> None:
    if not 0 < target < inf:
        raise PlanError(f"epsilon: got {target}; expected a finite number above 0")
