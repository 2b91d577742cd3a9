"""What every rule over single updates, and every step before one, must do."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedavg.errors import FedAvgError
from fedavg.robust import Defence, PreAggregator, Reducer, Rows, make_defence
from fedavg.testing.problem import CheckFailed, check_repeats, check_text, last, require, small_plan

#: The cohort that a rule is tried on.
_CLIENTS = 11


def check_reducer(reducer: Reducer | str, pre: Sequence[PreAggregator | str] = (), **options: Any) -> None:
    """It gives back what all send, withstands the faults that it is set to, and depends only on the updates.

    A run with it ends, with the same bits on any number of workers and after a stop. `pre` are steps before it.

    >>> from fedavg.robust import TrimmedMean
    >>> check_reducer(TrimmedMean(0.2), pre=["nnm:0.2"])
    """
    what = f"reducer {reducer!r}"
    require(isinstance(reducer, str | Reducer), f"{what} is not a fedavg.Reducer; derive its class from it")
    defence = make_defence(reducer, pre)
    check_text(defence.reducer, Reducer, what)
    for step in defence.pre:
        check_text(step, PreAggregator, f"step {step!r}")
    _check_values(defence, what)
    plan = small_plan(reducer=reducer, pre=pre, **{"C": 1.0, **options})
    end = last(plan, what)
    require(bool(end.state.weights.isfinite().all()), f"{what}: the weights after {end.round} rounds are not finite")
    check_repeats(plan, what, end)


def _check_values(defence: Defence, what: str) -> None:
    rng = np.random.default_rng(1)
    honest = (1 + 0.1 * rng.standard_normal((_CLIENTS, 40))).astype(np.float32)
    got = _reduced(defence, honest, what)
    require(got.shape == (40,), f"{what}: got an update of shape {got.shape}; expected (P,), here (40,)")
    again = _reduced(defence, honest, what)
    require(np.array_equal(got, again), f"{what} gave two answers to the same updates; draw only from case.rng")
    faults = max([defence.reducer.faults(_CLIENTS), *(step.faults(_CLIENTS) for step in defence.pre)])
    if faults:
        spoiled = honest.copy()
        spoiled[:faults] = 1e6
        moved = float(np.linalg.norm(_reduced(defence, spoiled, what) - honest.mean(axis=0)))
        require(
            moved < 1e4,
            f"{what}: {faults} of {_CLIENTS} updates of 1e6 moved the result by {moved:.3g}; expected it to "
            "withstand them: `faults` says how many",
        )


def _reduced(defence: Defence, updates: np.ndarray, what: str) -> np.ndarray:
    try:
        return np.asarray(defence.reduce(Rows.of(list(updates)), np.random.default_rng(2)))
    except FedAvgError as error:
        raise CheckFailed(f"{what}: {error}") from error
