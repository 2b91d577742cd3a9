"""How examples are dealt out to clients (§3, "data"). Knows labels and keys, not what an example is.

Each function gives a list of index arrays, one per client; together they hold every example exactly once. A plan
names a partition by a text such as `shards:2`, or gives a `Partition` of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from fedavg.errors import PlanError
from fedavg.specs import Pluggable, make, usage

Parts = list[np.ndarray]


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
    """Shuffled, then cut into equal parts (§3): sizes differ by at most one."""
    _need(len(labels), clients, "iid")
    return np.array_split(rng.permutation(len(labels)), clients)


def shards(labels: np.ndarray, clients: int, rng: np.random.Generator, per_client: int = 2) -> Parts:
    """The paper's pathological split (§3): sorted by label, cut into shards, `per_client` shards to each client.

    With MNIST, 100 clients and 2 shards each: 200 shards of 300, and most clients see two digits only.
    """
    count = clients * per_client
    _need(len(labels), count, f"shards:{per_client}")
    cut = np.array_split(np.argsort(labels, kind="stable"), count)
    hands = rng.permutation(count).reshape(clients, per_client)
    return [np.concatenate([cut[shard] for shard in hand]) for hand in hands]


def dirichlet(labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float) -> Parts:
    """Label skew with equal sizes, as Hsu, Qi and Brown (2019) make it: sizes differ by at most one.

    Each client draws its own mix of labels from a symmetric Dirichlet with parameter `alpha` per label, then draws
    examples by that mix, without replacement; a label that has run out leaves the mix. Small alpha: few labels per
    client; large alpha: IID. (Hsu et al. write Dir(αp), so their α is this one times the number of labels. The other
    common form, which splits each label over the clients, skews sizes too: use `unbalanced` for that.)
    """
    _need(len(labels), clients, f"dirichlet:{alpha:g}")
    order = rng.permutation(len(labels))
    values, inverse = np.unique(labels[order], return_inverse=True)
    pools = [order[inverse == index] for index in range(len(values))]
    taken = np.zeros(len(values), np.int64)
    left = np.array([len(pool) for pool in pools])
    parts = []
    for size in _equal_sizes(len(labels), clients):
        counts = _draw_labels(int(size), rng.dirichlet(np.full(len(values), alpha)), left, rng)
        parts.append(np.concatenate([p[t : t + c] for p, t, c in zip(pools, taken, counts, strict=True)]))
        taken += counts
        left -= counts
    return parts


def dirichlet_by_label(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, capped: bool = False
) -> Parts:
    """Each label is split over the clients by its own Dirichlet draw: sizes differ too.

    Drawn again until every client has at least ten examples. `capped`, as in the code of NIID-Bench (Li et al. 2022):
    a client that has its N/K examples gets none of the remaining labels.
    """
    _need(len(labels), 10 * clients, f"dirichlet:{alpha:g}:by=label")
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    for _attempt in range(1000):
        parts: Parts = [np.empty(0, np.int64)] * clients
        for pool in pools:
            shares = rng.dirichlet(np.full(clients, alpha))
            if capped:
                shares = shares * [len(part) < len(labels) / clients for part in parts]
                shares = shares / shares.sum()
            cut = np.split(pool, np.rint(np.cumsum(shares)[:-1] * len(pool)).astype(int))
            parts = [np.concatenate(pair) for pair in zip(parts, cut, strict=True)]
        if min(map(len, parts)) >= 10:
            return parts
    raise PlanError(
        f"partition dirichlet:{alpha:g}:by=label: in 1,000 draws some client had fewer than 10 examples; expected a "
        "larger alpha, or fewer clients"
    )


def by_labels(labels: np.ndarray, clients: int, rng: np.random.Generator, per_client: int) -> Parts:
    """Each client has this many labels (NIID-Bench's #C = k): client i the i-th, in turns, and others at random.

    The examples of a label are shared equally among the clients that have it.
    """
    values = np.unique(labels)
    if per_client > len(values):
        raise PlanError(f"partition labels:{per_client}: there are {len(values)} labels; expected as many or fewer")
    if clients < len(values):
        raise PlanError(
            f"partition labels:{per_client}: expected {len(values)} clients or more, so that no label is lost"
        )
    held = []
    for k in range(clients):
        own = k % len(values)
        others = rng.choice(np.delete(np.arange(len(values)), own), per_client - 1, replace=False)
        held.append({own, *others.tolist()})
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for place, label in enumerate(values):
        holders = [k for k in range(clients) if place in held[k]]
        shares = np.array_split(rng.permutation(np.flatnonzero(labels == label)), len(holders))
        for k, share in zip(holders, shares, strict=True):
            parts[k].append(share)
    return [np.concatenate(share) for share in parts]


def unbalanced(labels: np.ndarray, clients: int, rng: np.random.Generator, exponent: float) -> Parts:
    """IID content in unequal amounts: the i-th largest client holds about i^-exponent as much as the largest.

    Everyone has one example at least; exponent 0 is the balanced case. The sizes are dealt to clients at random.
    """
    _need(len(labels), clients, f"unbalanced:{exponent:g}")
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    # Rounding the running total, not each size, keeps the sum exact.
    ends = np.rint(np.cumsum(weights) / weights.sum() * (len(labels) - clients)).astype(np.int64)
    sizes = rng.permutation(1 + np.diff(ends, prepend=0))
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


def natural(keys: np.ndarray) -> Parts:
    """A client per distinct key (an author, a role), in the order of the keys; examples keep their order."""
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])


def zoned(labels: np.ndarray, clients: int, rng: np.random.Generator, zones: int) -> Parts:
    """Labels go with time zones: client k lives in zone k mod `zones`, and a zone's clients share its labels alone.

    The labels are dealt to the zones in rising order, as evenly as they go; within a zone examples are dealt as by iid.
    Zones are those of the world `diurnal`, so that presence is correlated with the data.
    """
    values = np.unique(labels)
    if not 1 <= zones <= min(len(values), clients):
        raise PlanError(
            f"partition zoned:{zones} with {len(values)} labels and {clients} clients: expected from 1 zone to as "
            "many as there are labels and clients"
        )
    parts: Parts = [np.empty(0, np.int64)] * clients
    for zone, own in enumerate(np.array_split(values, zones)):
        members = np.arange(zone, clients, zones)
        rows = rng.permutation(np.flatnonzero(np.isin(labels, own)))
        _need(len(rows), len(members), f"zoned:{zones}")
        for k, part in zip(members, np.array_split(rows, len(members)), strict=True):
            parts[k] = part
    return parts


def some_of(parts: Parts, clients: int | None, rng: np.random.Generator) -> Parts:
    """As many of the natural clients as asked for, drawn at random and kept in order; all of them where None."""
    if clients is None:
        return parts
    if clients > len(parts):
        raise PlanError(f"clients = {clients}, and the data has {len(parts)} of its own. Ask for that many or fewer.")
    return [parts[k] for k in np.sort(rng.choice(len(parts), clients, replace=False))]


def _need(examples: int, wanted: int, what: str) -> None:
    if wanted < 1:
        raise PlanError(f"partition {what} over {wanted} clients: expected 1 or more. Set the number of clients.")
    if examples < wanted:
        raise PlanError(
            f"partition {what} needs at least {wanted} examples, one for each part, and there are {examples}. "
            "Ask for fewer clients."
        )


def _equal_sizes(total: int, parts: int) -> np.ndarray:
    return total // parts + (np.arange(parts) < total % parts)


def _draw_labels(size: int, mix: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many examples of each label, shape (L,): `size` in all, at most `left` of each, drawn by `mix`."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        open_labels = counts < left
        share = np.where(open_labels, mix, 0.0)
        if share.sum() <= 0:  # only labels outside the mix are left (a tiny alpha rounds shares to 0)
            share = np.where(open_labels, left - counts, 0).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, share / share.sum()), left)
    return counts


class Partition(Pluggable, ABC):
    """A rule by which examples are dealt out to clients.

    >>> @dataclass(frozen=True)
    ... class InOrder(Partition):
    ...     def deal(self, labels, clients, rng):
    ...         return np.array_split(np.arange(len(labels)), clients)
    >>> from fedavg import load
    >>> load("mnist", InOrder(), clients=3).sizes.tolist()
    [20000, 20000, 20000]
    """

    kind = "partition"
    #: True if the clients are those of the data's own key (author, role), and nothing is dealt out.
    by_key: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Partition"]]:
        return PARTITIONS

    @abstractmethod
    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        """Index arrays for `clients` clients, which hold each of the N examples once. `labels` has shape (N,)."""


@dataclass(frozen=True)
class IID(Partition):
    """Shuffled, equal sizes.

    >>> str(IID())
    'iid'
    """

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        return iid(labels, clients, rng)


@dataclass(frozen=True)
class Shards(Partition):
    """Sorted by label, two shards to each client: the paper's non-IID split.

    >>> str(Shards(3))
    'shards:3'
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise PlanError(f"partition shards: got {self.per_client} shards for each client; expected 1 or more")

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        return shards(labels, clients, rng, self.per_client)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Draws each client's labels from a Dirichlet distribution; sizes are equal. With by=label it draws each label's
    clients, so sizes differ too, and less with `capped`, as in NIID-Bench.

    >>> str(Dirichlet(0.5))
    'dirichlet:0.5'
    """

    alpha: float
    by: Literal["client", "label"] = "client"
    capped: bool = False

    def __post_init__(self) -> None:
        if self.capped and self.by == "client":
            raise PlanError("partition dirichlet: capped is for by=label; by client all sizes are equal anyway")
        if not 0 < self.alpha < inf:
            raise PlanError(f"partition dirichlet: alpha is {self.alpha:g}; expected a number above 0")

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        if self.by == "client":
            return dirichlet(labels, clients, rng, self.alpha)
        return dirichlet_by_label(labels, clients, rng, self.alpha, self.capped)


@dataclass(frozen=True)
class Labels(Partition):
    """Gives each client this many labels; the clients that have a label share its examples evenly.

    >>> str(Labels(2))
    'labels:2'
    """

    per_client: int

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise PlanError(f"partition labels: got {self.per_client} for each client; expected 1 or more")

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        return by_labels(labels, clients, rng, self.per_client)


@dataclass(frozen=True)
class Unbalanced(Partition):
    """Shuffled, power-law sizes.

    >>> str(Unbalanced(1.5))
    'unbalanced:1.5'
    """

    exponent: float

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < inf:
            raise PlanError(f"partition unbalanced: the exponent is {self.exponent:g}; expected a number from 0")

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        return unbalanced(labels, clients, rng, self.exponent)


@dataclass(frozen=True)
class Natural(Partition):
    """By the data's own key (author, role).

    >>> str(Natural())
    'natural'
    """

    by_key = True

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        others = ", ".join(usage({name: kind for name, kind in PARTITIONS.items() if not kind.by_key}))
        raise PlanError(
            f"partition natural needs a key per example, and these examples have none. Use one of: {others}."
        )


@dataclass(frozen=True)
class Zoned(Partition):
    """Labels by time zone, as the world `diurnal` has them.

    >>> str(Zoned(2))
    'zoned:2'
    """

    zones: int

    def __post_init__(self) -> None:
        if self.zones < 1:
            raise PlanError(f"partition zoned: got {self.zones} zones; expected 1 or more")

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        return zoned(labels, clients, rng, self.zones)


PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "shards": Shards,
    "dirichlet": Dirichlet,
    "labels": Labels,
    "unbalanced": Unbalanced,
    "natural": Natural,
    "zoned": Zoned,
}


def parse_partition(spec: str | Partition) -> Partition:
    """A partition as a plan writes it: `iid`, `shards:2`, `dirichlet:0.5`, ..., or the object itself."""
    return make(spec, Partition)  # type: ignore[type-abstract]
