"""`Reducer`: from single updates to one, where some clients may lie. Knows vectors, not clients, models or networks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.ranks import rank_means
from fedavg.robust.rows import Rows
from fedavg.robust.sorting import sorted_columns
from fedavg.specs import Pluggable


@dataclass(frozen=True)
class Case:
    """What a rule knows besides the updates: f, how many may be faulty; its own generator for this round; what the
    last round's updates were reduced to, shape (P,), if the rule `remembers` it and there was one.

    >>> Case(faults=2, rng=np.random.default_rng(0)).faults
    2
    """

    faults: int
    rng: np.random.Generator
    previous: np.ndarray | None = None


class Reducer(Pluggable, ABC):
    """A rule that reduces a cohort's updates to one. Each counts equally, because a client's n_k is its own claim.

    The server half of an algorithm sees the result as a `Sum`, as always. A rule of your own is a frozen dataclass:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Midrange(Reducer):
    ...     name = "midrange"
    ...
    ...     def reduce(self, rows, case):
    ...         ends = [(tile.min(axis=0) + tile.max(axis=0)) / 2 for _, tile in rows.tiles()]
    ...         return np.concatenate(ends)
    >>> rows = Rows.of([np.array([0.0, 1.0], np.float32), np.array([4.0, 2.0], np.float32)])
    >>> Midrange().reduce(rows, Case(0, np.random.default_rng(0))).tolist()
    [2.0, 1.5]
    """

    kind = "reducer"
    name: str
    #: True if the rule must see the updates one by one: secure aggregation, which hides them, excludes it.
    single_updates: bool = True
    #: True if the rule starts from the last round's result.
    remembers: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Reducer"]]:
        from fedavg.robust import REDUCERS

        return REDUCERS

    @abstractmethod
    def reduce(self, rows: Rows, case: Case) -> np.ndarray:
        """One update, shape (P,), of n rows of which `case.faults` may be anything (finite)."""

    def weights(self, rows: Rows, case: Case) -> np.ndarray | None:
        """The weight of each row in the result, shape (n,); None if it is not a combination of whole rows."""
        return None

    def faults(self, clients: int) -> int:
        """f for a cohort of this many clients; 0 for a rule without such a setting."""
        return 0

    def tolerates(self, rows: int) -> int:
        """The most faulty rows, of this many, that the rule tolerates."""
        return max((rows - 1) // 2, 0)


@dataclass(frozen=True)
class Tolerant:
    """The setting of a rule, or of a step before it, that withstands some faulty clients: which share of the cohort, or
    how many."""

    faulty: int | float = 0.2

    def __post_init__(self) -> None:
        if not (0 <= self.faulty < 0.5 or (self.faulty >= 1 and float(self.faulty).is_integer())):
            raise PlanError(
                f"{self.name}: got {self.faulty:g} faulty clients; "  # type: ignore[attr-defined]
                "expected a share of the cohort below 0.5, or a whole number"
            )

    def faults(self, clients: int) -> int:
        """f for a cohort of this many clients."""
        return faulty_clients(self.faulty, clients)


class Combination(Reducer):
    """A rule whose result is a combination of whole rows: it needs distances, not coordinates."""

    @abstractmethod
    def weights(self, rows: Rows, case: Case) -> np.ndarray:
        """The weight of each row, shape (n,)."""

    def reduce(self, rows: Rows, case: Case) -> np.ndarray:
        return rows.combined(self.weights(rows, case))


class Coordinatewise(Reducer):
    """A rule that treats each coordinate separately."""

    @abstractmethod
    def of_sorted(self, values: np.ndarray, faults: int) -> np.ndarray:
        """From the values of n rows at T coordinates, each in rising order, shape (n, T), float32, to shape (T,)."""

    def reduce(self, rows: Rows, case: Case) -> np.ndarray:
        total = np.empty(rows.size)
        for place, tile in rows.tiles():
            total[place] = self.of_sorted(sorted_columns(tile), case.faults)
        return total


class RankMean(Reducer):
    """A rule that takes the mean of some ranks of each coordinate."""

    @abstractmethod
    def ranks(self, rows: int, faults: int) -> range:
        """Which ranks of this many rows count, the least value having rank 0."""

    def reduce(self, rows: Rows, case: Case) -> np.ndarray:
        return rank_means(rows, self.ranks(len(rows), case.faults))


class PreAggregator(Pluggable, ABC):
    """A step before the rule: it replaces the rows by combinations of them.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halved(PreAggregator):
    ...     name = "halved"
    ...
    ...     def mix(self, rows, case):
    ...         return np.eye(len(rows)) / 2
    """

    kind = "pre"
    name: str

    @classmethod
    def registry(cls) -> Mapping[str, type["PreAggregator"]]:
        from fedavg.robust import PRE_AGGREGATORS

        return PRE_AGGREGATORS

    @abstractmethod
    def mix(self, rows: Rows, case: Case) -> np.ndarray:
        """The new rows as combinations of the old: shape (new rows, n)."""

    def faults(self, clients: int) -> int:
        """f for a cohort of this many clients; 0 for a step without such a setting."""
        return 0

    def tolerates(self, rows: int) -> int:
        """The most faulty rows, of this many, that the step tolerates."""
        return max((rows - 1) // 2, 0)

    def rows_after(self, rows: int) -> int:
        """How many rows there are after it; each faulty client spoils at most one of them."""
        return rows


def faulty_clients(faulty: float, clients: int) -> int:
    """f: a whole number as it is, a share of the cohort rounded up.

    >>> faulty_clients(0.3, 10), faulty_clients(0.3, 12), faulty_clients(4, 12)
    (3, 4, 4)
    """
    return int(faulty) if faulty >= 1 else ceil(faulty * clients - 1e-9)
