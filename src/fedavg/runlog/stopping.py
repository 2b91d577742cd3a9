"""Rules that end a run early, from Python. They are not part of the plan: the run can be continued."""

from collections.abc import Callable

from fedavg.errors import PlanError
from fedavg.metrics import METRICS
from fedavg.metrics.goal import Best, Goal, improved
from fedavg.runlog.summary import curve
from fedavg.server import Round, event_row

#: Called after every round; True ends the run there.
StopRule = Callable[[Round], bool]


class Patience:
    """Ends a run when a metric has not improved for this many evaluations.

    The package knows which way is better for its own metrics; for others set `higher_is_better`.

    >>> from fedavg import Plan, run
    >>> result = run(Plan(data="mnist", C=0.02, lr=1e-9, rounds=9, workers=1), stop=Patience("accuracy", 2))
    >>> result.summary.rounds, result.summary.status
    (3, 'ended by its stop rule')
    """

    def __init__(self, metric: str, evaluations: int, higher_is_better: bool | None = None) -> None:
        if isinstance(evaluations, bool) or not isinstance(evaluations, int) or evaluations < 1:
            raise PlanError(f"Patience: got {evaluations!r} evaluations; expected a whole number from 1 on")
        if higher_is_better is None:
            if metric not in METRICS:
                raise PlanError(
                    f"Patience: it is not known whether a higher '{metric}' is better; expected "
                    f"Patience('{metric}', {evaluations}, higher_is_better=True) or False"
                )
            higher_is_better = METRICS[metric].higher_is_better
        self._goal = Goal(metric, higher_is_better)
        self._evaluations = evaluations
        self._best: Best | None = None
        self._since = 0

    def __call__(self, event: Round) -> bool:
        for round, value in zip(*curve([event_row(event)], self._goal.metric), strict=True):
            best = improved(self._goal, self._best, round, value)
            self._since = 0 if best is not self._best else self._since + 1
            self._best = best
        return self._since >= self._evaluations
