"""Who masks with whom, and how many shares open a secret.

Complete graph: Bonawitz et al. 2017. Sparse: Bell et al. 2020 ("SecAgg+"), a Harary graph on a random order of the
clients, whose degree grows with log n. Each client also keeps one share of its own secrets, so a secret has
degree + 1 holders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import exp, floor, inf, lgamma, log
from typing import Final

from fedavg.secagg.errors import TermsError

#: The server learns more than the sum with probability at most 2^-SECURITY (sigma in Bell et al.) ...
SECURITY: Final = 40
#: ... and a round within the dropout rate fails with probability at most 2^-CORRECTNESS (eta).
CORRECTNESS: Final = 20
#: Guards the floor and ceiling of rate * n against rounding: a rate such as 0.05 may be slightly off in binary.
_HAIR: Final = 1e-12


@dataclass(frozen=True)
class Topology:
    """Neighbours of a client, shares that open a secret, and the fewest survivors whose sum may be opened."""

    degree: int
    threshold: int
    minimum: int


def complete(clients: int, threshold: int | None = None) -> Topology:
    """Every pair of clients. By default more than two thirds must survive, so that a third may collude."""
    threshold = 2 * clients // 3 + 1 if threshold is None else threshold
    if clients < 2:
        raise TermsError(
            f"secure aggregation of {clients} client(s): expected at least 2, for the sum of one is its input"
        )
    # With 2t > n no two disjoint sets of t holders exist, so a server that tells clients different things about one
    # of them cannot open both of its secrets (Bonawitz et al., §6.2).
    if not clients < 2 * threshold <= 2 * clients:
        raise TermsError(f"threshold {threshold} of {clients}: expected more than half of the clients, at most all")
    return Topology(clients - 1, threshold, threshold)


@lru_cache(maxsize=64)
def sparse(clients: int, adversaries: float, dropout: float, active: bool = False) -> Topology:
    """The least even degree that is private and correct at these rates (Bell et al. §3.3), and its threshold.

    The server and a fraction `adversaries` of the clients collude; a fraction `dropout` may vanish. An active server
    may also tell clients different things, so no two sets of t holders may share only colluding ones.
    """
    if not (0 <= adversaries < 1 and 0 <= dropout < 1 and adversaries + dropout < 1):
        raise TermsError(f"rates ({adversaries}, {dropout}): expected both in [0, 1), with a sum below 1")
    colluding = floor(clients * adversaries + _HAIR)
    vanishing = floor(clients * dropout + _HAIR)
    for degree in range(2, clients - 1, 2):
        if _log_disconnected(clients, degree, colluding + vanishing) >= -(SECURITY + 1) * log(2):
            continue
        lowest = _least_private(clients, degree, colluding)
        if active:
            lowest = (degree + lowest) // 2 + 1  # 2t > (degree + 1 holders) + (lowest - 1 that give both shares)
        if lowest <= _most_correct(clients, degree, clients - vanishing):
            return Topology(degree, max(lowest, 2), max(clients - vanishing, 2))
    raise TermsError(
        f"no sparse graph of {clients} clients is safe with {adversaries:.0%} colluding and {dropout:.0%} dropping; "
        "use the complete graph"
    )


def neighbours(order: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Each client's neighbours: those within degree / 2 places of it on the ring `order`, or all if there are few."""
    if degree >= len(order) - 1:
        return {client: tuple(sorted(set(order) - {client})) for client in order}
    steps = [*range(1, degree // 2 + 1), *range(-(degree // 2), 0)]
    size = len(order)
    return {order[i]: tuple(sorted(order[(i + step) % size] for step in steps)) for i in range(size)}


def _log_disconnected(clients: int, degree: int, bad: int) -> float:
    """A bound on ln P[removing `bad` random nodes cuts the ring in two].

    A cut takes degree / 2 bad nodes in a row at two places: n (n - k - 1) / 2 pairs of places, each all bad with
    probability C(bad, k) / C(n, k).
    """
    if degree > bad:
        return -inf
    return log(clients) + log(clients - degree - 1) - log(2) + _log_choose(bad, degree) - _log_choose(clients, degree)


def _least_private(clients: int, degree: int, colluding: int) -> int:
    """The least t that no client's colluding neighbours reach, except with probability 2^-(SECURITY + 1)."""
    allowed = 2.0 ** -(SECURITY + 1) / clients
    tails = accumulate(_hypergeometric(clients, colluding, degree, hits) for hits in range(degree, -1, -1))
    return degree + 1 - sum(tail <= allowed for tail in tails)


def _most_correct(clients: int, degree: int, surviving: int) -> int:
    """The largest t that every client's surviving neighbours reach, except with probability 2^-CORRECTNESS."""
    allowed = 2.0**-CORRECTNESS / clients
    tails = accumulate(_hypergeometric(clients, surviving, degree, hits) for hits in range(degree))
    return sum(tail < allowed for tail in tails)


def _hypergeometric(population: int, marked: int, draws: int, hits: int) -> float:
    """P[of `draws` out of `population`, exactly `hits` are among the `marked`]."""
    if not max(0, draws - (population - marked)) <= hits <= min(draws, marked):
        return 0.0
    ways = _log_choose(marked, hits) + _log_choose(population - marked, draws - hits)
    return exp(ways - _log_choose(population, draws))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
