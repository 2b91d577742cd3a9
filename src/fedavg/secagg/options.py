"""How a plan asks for secure aggregation: `complete:CLIP:CAP` or `sparse:CLIP:CAP`, with further settings after colons.

CLIP bounds each number of an update and CAP the weight n_k, so that the sum fits into the ring; what is cut off by
them is counted and reported. The clients derive the terms of a session from their own copy of the plan: a server can
not talk them into weaker ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from fedavg.errors import PlanError
from fedavg.secagg.errors import TermsError
from fedavg.secagg.ring import Encoding
from fedavg.secagg.terms import Terms
from fedavg.specs import parse_spec


class Masking(ABC):
    """Makes the terms of sessions."""

    clip: float
    cap: float
    bits: int
    #: Against a server that lies: keys and survivor sets are signed by devices that an authority vouches for.
    signed: bool

    def terms(
        self, session: bytes, round: int, model: str, clients: int, dimension: int, metrics: Iterable[str]
    ) -> Terms:
        """The terms of one session for so many invited clients."""
        encoding = Encoding(clients, dimension, self.clip, self.cap, tuple(sorted(metrics)), self.bits)
        return self._terms(session, round, bytes.fromhex(model), encoding)

    def check(self, clients: int) -> None:
        """Refuses, before round 1, a cohort that these settings can not serve."""
        try:
            self.terms(bytes(16), 1, "00" * 32, clients, 1, ())
        except TermsError as error:
            raise PlanError(f"secagg with {clients} clients a round: {error}") from None

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

    def __post_init__(self) -> None:
        if not 0.5 < self.needed <= 1:
            raise PlanError(f"secagg: needed={self.needed:g}; expected a share above 0.5 and up to 1")

    def _terms(self, session: bytes, round: int, model: bytes, encoding: Encoding) -> Terms:
        threshold = max(2, ceil(self.needed * encoding.clients))
        return Terms(session, round, model, encoding, threshold=threshold, signed=self.signed)


@dataclass(frozen=True)
class Sparse(Masking):
    """Clients share masks with some neighbours (Bell et al. 2020), as many as these rates ask for."""

    clip: float
    cap: float
    bits: int = 32
    colluding: float = 0.05
    dropout: float = 0.33
    signed: bool = False

    def _terms(self, session: bytes, round: int, model: bytes, encoding: Encoding) -> Terms:
        return Terms(session, round, model, encoding, sparse=(self.colluding, self.dropout), signed=self.signed)


MASKINGS: dict[str, type[Masking]] = {"complete": Complete, "sparse": Sparse}


def make_masking(text: str) -> Masking | None:
    """As a plan writes it; none for 'none'."""
    return None if text == "none" else parse_spec(text, MASKINGS, "secagg")
