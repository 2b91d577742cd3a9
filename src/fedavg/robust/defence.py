"""A plan's whole defence: the steps before the rule, in order, and the rule."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.mean import PlainMean
from fedavg.robust.reducer import Case, PreAggregator, Reducer
from fedavg.robust.rows import Rows


class TooFew(PlanError):
    """There are too few updates for the faults that the defence must withstand."""


@dataclass(frozen=True)
class Defence:
    """The step between the single updates and the server half of an algorithm.

    >>> from fedavg.robust import make_defence
    >>> rows = Rows.of([np.full(2, value, np.float32) for value in (1.0, 2.0, 3.0, 100.0)])
    >>> make_defence("median", ["clip:4"]).reduce(rows, np.random.default_rng(0)).round(3).tolist()
    [2.414, 2.414]
    """

    reducer: Reducer = PlainMean()
    pre: Sequence[PreAggregator] = ()

    def check(self, clients: int, liars: int = 0) -> None:
        """Refuse a cohort that is too small for the faults that the parts must withstand, or for the liars there are.

        A part may be set to fewer faults than there are liars, to study what happens then.
        """
        rows = clients
        for step in self.pre:
            _check(step, clients, rows, liars)
            rows = step.rows_after(rows)
        _check(self.reducer, clients, rows, liars)

    def reduce(self, rows: Rows, rng: np.random.Generator, previous: np.ndarray | None = None) -> np.ndarray:
        """One update, shape (P,), float64."""
        ready = self._prepared(rows, rng)
        return self.reducer.reduce(ready, self._case(rows, rng, previous))

    def weights(self, rows: Rows, rng: np.random.Generator, previous: np.ndarray | None = None) -> np.ndarray | None:
        """The weight of each vector of the basis in the result; None if it is not a combination of whole updates."""
        ready = self._prepared(rows, rng)
        weights = self.reducer.weights(ready, self._case(rows, rng, previous))
        return None if weights is None else ready.coefficients(weights)

    def _prepared(self, rows: Rows, rng: np.random.Generator) -> Rows:
        clients = len(rows)
        self.check(clients)
        for step in self.pre:
            rows = rows.mixed(step.mix(rows, Case(step.faults(clients), rng)))
        return rows

    def _case(self, rows: Rows, rng: np.random.Generator, previous: np.ndarray | None) -> Case:
        return Case(self.reducer.faults(len(rows)), rng, previous)


def _check(part: PreAggregator | Reducer, clients: int, rows: int, liars: int) -> None:
    faults, most = part.faults(clients), part.tolerates(rows)
    cohort = f"a cohort of {clients} clients{f', which make {rows} rows' if rows != clients else ''}"
    stands = f"withstands {most} at most" if most >= 0 else "needs more of them"
    if faults > most:
        raise TooFew(
            f"{part.kind}: got '{part}' for {cohort}; it must withstand {faults} faulty ones, and {stands}: expected "
            "fewer, or a larger cohort (C)"
        )
    if liars > most:
        raise TooFew(
            f"attackers: got {liars} in {cohort}; {part.kind} '{part}' {stands}: expected no more, or another reducer"
        )
