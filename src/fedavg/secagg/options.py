"""How a plan asks for secure aggregation: `complete:CLIP:CAP` or `sparse:CLIP:CAP`, with further settings after colons.

CLIP bounds each number of an update and CAP the weight n_k, so that the sum fits into the ring; clipped numbers and
weights are counted and reported. The clients derive the terms of a session from their own copy of the plan: a server
cannot talk them into weaker ones.

Updates that carry their share of the noise are not clipped: they wrap round the ring, so that no noise is lost. CLIP
times CAP must then be wide enough that a sum never wraps in practice, and the ring fine enough that no noise is rounded
away.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, floor, log10, sqrt
from typing import Final

from fedavg.errors import PlanError
from fedavg.secagg.errors import TermsError
from fedavg.secagg.ring import Encoding
from fedavg.secagg.terms import Terms
from fedavg.specs import bound, parse_spec

#: A sum's noise is assumed to stay within this many standard deviations: the probability that any of 10^15 numbers
#: exceeds them is below 10^-17.
TAIL: Final = 12.0
#: A share of continuous noise has a standard deviation of at least this many ring steps, so that rounding to whole
#: steps changes its distribution negligibly.
LEAST_STEPS: Final = 4.0
#: float32 represents every whole number up to here: beyond, discrete noise would leave its grid.
_WHOLE: Final = 2**24


@dataclass(frozen=True)
class Shares:
    """Updates that carry noise: their norm without it, the noise's standard deviation, and the grid, if it has one.

    `least` clients together carry the whole noise that was promised.
    """

    norm: float
    std: float
    bits: int
    least: int

    def range_for(self, clients: int) -> float:
        """The CLIP times CAP with which a sum of this many does not wrap: each adds its norm and some of the noise."""
        return self.norm + TAIL * self.std / sqrt(clients)


class Masking(ABC):
    """Makes the terms of sessions."""

    clip: float
    cap: float
    bits: int
    #: Against a lying server: devices that an authority vouches for sign keys and survivor sets.
    signed: bool
    #: The noise that updates carry; None if they carry none.
    shares: Shares | None

    def terms(
        self, session: bytes, round: int, model: str, clients: int, dimension: int, metrics: Iterable[str]
    ) -> Terms:
        """The terms of one session for this many invited clients."""
        wraps = self.shares is not None
        encoding = Encoding(clients, dimension, self.clip, self.cap, tuple(sorted(metrics)), self.bits, wraps=wraps)
        terms = self._terms(session, round, bytes.fromhex(model), encoding)
        return replace(terms, least=min(self.shares.least, clients)) if self.shares else terms

    def check(self, clients: int) -> None:
        """Refuse, before round 1, a cohort that these settings cannot serve."""
        try:
            encoding = self.terms(bytes(16), 1, "00" * 32, clients, 1, ()).encoding
        except TermsError as error:
            raise PlanError(f"secagg with {clients} clients a round: {error}") from None
        if self.shares:
            self._check_shares(self.shares, encoding)

    def _check_shares(self, shares: Shares, encoding: Encoding) -> None:
        """No noise may be lost: to missing clients, beyond the range, to the ring's rounding, or off its own grid."""
        if encoding.clients < shares.least:
            raise PlanError(
                f"secagg with {encoding.clients} clients: only {shares.least} of them together carry the noise that "
                "was promised; expected so many, or a larger dropout of the noise"
            )
        needed, has = shares.range_for(encoding.clients), self.clip * self.cap
        if has < needed:
            raise PlanError(
                f"secagg: clip x cap is {has:g}, too near to the noise; expected at least {needed:.4g} for norm "
                f"{shares.norm:.4g} and noise of {shares.std:.4g} from each of {encoding.clients} clients: use a clip "
                f"of {_rounded_up(needed / self.cap):g} or more"
            )
        step = 2.0**-encoding.fraction_bits
        if shares.bits > encoding.fraction_bits or (not shares.bits and shares.std < LEAST_STEPS * step):
            grid = 2.0**-shares.bits if shares.bits else shares.std / LEAST_STEPS
            raise PlanError(
                f"secagg: the ring has steps of {step:.4g}, which would round the noise away; expected at most "
                f"{grid:.4g}: use a smaller clip or cap (at least {needed:.4g} together), or more bits, as in bits=64"
            )
        if (shares.norm + TAIL * shares.std) * 2.0**shares.bits >= _WHOLE and shares.bits:
            raise PlanError(f"noise: bits={shares.bits} is too fine for noise of {shares.std:.4g}; use fewer bits")

    @abstractmethod
    def _terms(self, session: bytes, round: int, model: bytes, encoding: Encoding) -> Terms: ...


@dataclass(frozen=True)
class Complete(Masking):
    """Every pair of clients shares a mask (Bonawitz et al. 2017); `needed` is the share of them that must stay."""

    clip: float
    cap: float
    bits: int = 32
    needed: float = 0.67
    signed: bool = False
    shares: Shares | None = bound(None)

    def __post_init__(self) -> None:
        if not 0.5 < self.needed <= 1:
            raise PlanError(f"secagg: needed={self.needed:g}; expected a share above 0.5 and up to 1")

    def _terms(self, session: bytes, round: int, model: bytes, encoding: Encoding) -> Terms:
        threshold = max(2, ceil(self.needed * encoding.clients))
        return Terms(session, round, model, encoding, threshold=threshold, signed=self.signed)


@dataclass(frozen=True)
class Sparse(Masking):
    """Clients share masks with some neighbours (Bell et al. 2020), as many as these rates require."""

    clip: float
    cap: float
    bits: int = 32
    colluding: float = 0.05
    dropout: float = 0.33
    signed: bool = False
    shares: Shares | None = bound(None)

    def _terms(self, session: bytes, round: int, model: bytes, encoding: Encoding) -> Terms:
        return Terms(session, round, model, encoding, sparse=(self.colluding, self.dropout), signed=self.signed)


MASKINGS: dict[str, type[Masking]] = {"complete": Complete, "sparse": Sparse}


def make_masking(text: str) -> Masking | None:
    """The masking that a plan's text names; None for 'none'."""
    return None if text == "none" else parse_spec(text, MASKINGS, "secagg")


def _rounded_up(value: float) -> float:
    """Rounded up to two significant digits."""
    digit = 10.0 ** (floor(log10(value)) - 1)
    return float(f"{ceil(value / digit) * digit:.3g}")
