"""Who took part in a round, and what the server saw of each update: its norm, and its cosine to the mean.

Updates are added and discarded, so the mean is not known yet when they arrive. Each leaves a sketch of 1,024 numbers
instead: a linear map with random signs that preserves inner products to about 1/32. The sketch of the mean is the mean
of the sketches. Sketches stay in memory; two numbers are recorded per update, and none if differential privacy
or secure aggregation hides single updates from the server.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import sqrt
from typing import Any, Final

import numpy as np
from torch import Tensor

from fedavg import seeds
from fedavg.sums import Look, look, sign_type
from fedavg.types import Update

#: Numbers of a sketch.
SKETCH: Final = 1024
#: Rounds of at most this many clients are recorded client by client, larger rounds only by counts.
MOST_NAMED: Final = 1000


@dataclass(frozen=True)
class Seen:
    """One update as the server saw it: its weight, its L2 norm, its sketch (float32)."""

    weight: float
    norm: float
    sketch: bytes


@dataclass(frozen=True)
class Attendance:
    """Who was asked in a round, and how each of them fared.

    `seen` and `missing` name clients; both are empty if the plan hides them from the server.
    """

    asked: int
    seen: Mapping[int, Seen] = field(default_factory=dict)
    #: By reason, the clients that sent nothing, and how many they are.
    missing: Mapping[str, Sequence[int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    #: How many updates came from a model of each age in rounds, in an asynchronous run.
    staleness: Mapping[int, int] = field(default_factory=dict)
    #: Under secure aggregation: the number of clients in the sum, and the number it needs, if that is one number.
    survivors: int | None = None
    threshold: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As recorded in a row; optional fields are present only if this round has them."""
        counts = dict(self.counts) or {reason: len(clients) for reason, clients in self.missing.items()}
        found: dict[str, Any] = {"asked": self.asked, "missing": counts}
        if any(self.staleness):
            found["staleness"] = {str(age): count for age, count in sorted(self.staleness.items())}
        if self.survivors is not None:
            found |= {"survivors": self.survivors, "threshold": self.threshold}
        return found | ({"who": self._who()} if self.seen and self.asked <= MOST_NAMED else {})

    def _who(self) -> dict[str, Any]:
        """Client by client, as columns: its number, its outcome, its update's norm and cosine to the mean."""
        outcome = dict.fromkeys(self.seen, "reported") | {k: why for why, all in self.missing.items() for k in all}
        clients = sorted(outcome)
        cosines = cosines_to_mean(self.seen)
        return {
            "client": clients,
            "outcome": [outcome[k] for k in clients],
            "norm": [_digits(self.seen[k].norm) if k in self.seen else None for k in clients],
            "cosine": [cosines.get(k) for k in clients],
        }


def see(update: Update, seed: int) -> Seen:
    """What is kept of an update until its round is over; `seed` is the plan's."""
    return seen_by(look_at(update.vector, seed), update.weight)


def look_at(vector: Tensor, seed: int) -> Look:
    """Its largest magnitude, its norm and its sketch, shape (SKETCH,) float32."""
    return look(vector, signs_of(len(vector), seed), SKETCH)


def seen_by(found: Look, weight: float) -> Seen:
    return Seen(weight, found.norm, found.folded.tobytes())


@lru_cache(1)
def signs_of(size: int, seed: int) -> np.ndarray:
    """The random signs of a run, shape (size,)."""
    signs = seeds.rng(seed, seeds.NONE, seeds.NONE, "sketch").integers(0, 2, size, np.int8) * np.int8(2) - np.int8(1)
    return signs.astype(sign_type(), copy=False)


def cosines_to_mean(seen: Mapping[int, Seen]) -> dict[int, float]:
    """The cosine of each update to the weighted mean of all, by client; left out if either is zero."""
    clients = sorted(seen)  # the order of arrival must not change the result
    if not clients:
        return {}
    sketches = np.frombuffer(b"".join(seen[k].sketch for k in clients), np.float32).reshape(len(clients), SKETCH)
    largest = np.maximum(sketches.max(1), -sketches.min(1)).astype(np.float64)
    units = sketches / np.where(largest > 0, largest, 1).astype(np.float32)[:, None]  # no square of these overflows
    weights = largest * [seen[k].weight for k in clients]
    # Not by BLAS, whose threads keep a core busy for a while after each product.
    mean = np.einsum("i,ij->j", (weights / (abs(weights).max() or 1)).astype(np.float32), units)
    lengths = np.sqrt(np.einsum("ij,ij->i", units, units)) * sqrt(float(np.einsum("j,j->", mean, mean)))
    products = np.einsum("ij,j->i", units, mean).astype(np.float64)
    cosines = np.round(products / np.where(lengths > 0, lengths, 1), 3).tolist()
    return {k: cosine for k, cosine, length in zip(clients, cosines, lengths, strict=True) if length > 0}


def joined(parts: Sequence[Attendance | None], scales: Sequence[float]) -> Attendance | None:
    """The parts of a round as one; the weights of a part's updates are scaled like its sum."""
    there = [(part, scale) for part, scale in zip(parts, scales, strict=True) if part is not None]
    if not there:
        return None
    seen = {k: replace(each, weight=scale * each.weight) for part, scale in there for k, each in part.seen.items()}
    staleness: Counter[int] = Counter()
    for part, _ in there:
        staleness.update(part.staleness)
    return Attendance(sum(part.asked for part, _ in there), seen, staleness=staleness)


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
