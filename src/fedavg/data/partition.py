"""How examples are dealt out to clients (§3, "data"). Knows labels and keys, not what an example is.

Each function gives a list of index arrays, one per client; together they hold every example exactly once. A plan
names a partition by a string such as `shards:2`, which `parse_partition` turns into a `Partition`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError

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


@dataclass(frozen=True)
class Kind:
    """A kind of partition: how it is written, the default of its number, and what that number may be."""

    form: str
    summary: str
    default: float | None
    valid: Callable[[float], bool]
    expected: str
    deal: Callable[[np.ndarray, int, np.random.Generator, float], Parts] | None


def _no_number(_: float) -> bool:
    return False


KINDS: dict[str, Kind] = {
    "iid": Kind(
        "iid", "shuffled, equal sizes", None, _no_number, "no number", lambda y, k, r, _: iid(y, k, r)
    ),
    "shards": Kind(
        "shards:2", "sorted by label, two shards to each client (the paper's non-IID)", 2,
        lambda v: v >= 1 and v.is_integer(), "a whole number of shards per client, 1 or more",
        lambda y, k, r, v: shards(y, k, r, int(v)),
    ),
    "dirichlet": Kind(
        "dirichlet:0.5", "each client's labels from a Dirichlet, equal sizes", None,
        lambda v: 0 < v < float("inf"), "an alpha above 0", dirichlet,
    ),
    "unbalanced": Kind(
        "unbalanced:1.5", "shuffled, power-law sizes", None,
        lambda v: 0 <= v < float("inf"), "an exponent, 0 or more", unbalanced,
    ),
    "natural": Kind("natural", "by the data's own key (author, role)", None, _no_number, "no number", None),
}  # fmt: skip


@dataclass(frozen=True)
class Partition:
    """A kind with its number; `str()` of it is the canonical spec."""

    kind: str
    number: float | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{str(self.number).removesuffix('.0')}"

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        """Index arrays for `clients` clients. `labels` has shape (N,); only `shards` and `dirichlet` look at it."""
        deal = KINDS[self.kind].deal
        if deal is None:
            raise PlanError(
                f"partition {self} needs a key per example, and these examples have none. "
                f"Use one of: {', '.join(kind.form for kind in KINDS.values() if kind.deal)}."
            )
        return deal(labels, clients, rng, 0.0 if self.number is None else self.number)


def parse_partition(spec: str) -> Partition:
    """`iid`, `shards`, `shards:2`, `dirichlet:0.5`, `unbalanced:1.5` or `natural`; anything else is a PlanError."""
    name, colon, text = spec.strip().partition(":")
    kind = KINDS.get(name)
    if kind is None:
        forms = "; ".join(f"{kind.form} ({kind.summary})" for kind in KINDS.values())
        raise PlanError(f"unknown partition {spec!r}. Expected one of: {forms}.")
    if not colon and (kind.default is not None or kind.valid is _no_number):
        return Partition(name, kind.default)
    number = _number(text)
    if number is None or not kind.valid(number):
        raise PlanError(f"partition {spec!r}: expected {kind.expected} after {name!r}. Write it like {kind.form!r}.")
    return Partition(name, number)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
