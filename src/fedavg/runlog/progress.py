"""The live line of a run, on stderr: rewritten in place in a terminal or a notebook, now and then a line in a log."""

import sys
from collections import deque
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final

from fedavg.errors import Diverged
from fedavg.metrics.goal import Best, Goal, improved
from fedavg.metrics.rows import watched
from fedavg.plan import Plan
from fedavg.server import Event, Round, event_row

TERMINAL_PERIOD_S: Final = 0.1
LOG_PERIOD_S: Final = 10.0


class ProgressLine:
    """A watcher of events; as a context manager it also says how to continue when a run is stopped."""

    def __init__(self, plan: Plan, goal: Goal, directory: Path | None, quiet: bool = False) -> None:
        self._plan = plan
        self._goal = goal
        self._directory = directory
        self._quiet = quiet
        self._rewrites = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._shown_at = 0.0
        self._ends: deque[float] = deque(maxlen=50)
        self._best: Best | None = None
        self._value: float | None = None
        self._up = self._down = 0
        self._last = 0

    def __enter__(self) -> "ProgressLine":
        return self

    def __call__(self, event: Event) -> None:
        self._last = event.round
        self._ends.append(monotonic())
        if isinstance(event, Round):
            self._note(event)
            self._show(event)
        elif not self._quiet:
            where = f"; run directory {self._directory}" if self._directory else ""
            _say(f"engine {event.engine} ({event.engine_reason}){where}")
            if event.round:
                _say(f"continuing after round {event.round}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._rewrites and not self._quiet and self._last:
            _say("")
        if kind is KeyboardInterrupt:
            how = f"; continue with: fedavg resume {self._directory}" if self._directory else ""
            _say(f"stopped after round {self._last}{how}")
        if kind is Diverged and self._directory:
            _say(f"the model of round {self._last} is kept in {self._directory}")

    def _note(self, event: Round) -> None:
        self._up += event.bytes_up
        self._down += event.bytes_down
        value = watched(event_row(event), self._goal.metric)
        if value is not None:
            self._value, self._best = value, improved(self._goal, self._best, event.round, value)

    def _show(self, event: Round) -> None:
        period = TERMINAL_PERIOD_S if self._rewrites else LOG_PERIOD_S
        due = monotonic() - self._shown_at >= period or event.round == self._plan.rounds
        if self._quiet or not due:
            return
        self._shown_at = monotonic()
        line = self._line(event)
        if self._rewrites:
            _say(f"\r{line}\x1b[K", end="")
        else:
            _say(line)

    def _score(self) -> str:
        if self._value is None or self._best is None:
            return f"{self._goal.metric} -"
        best = f"  best {self._best.value:.4f}" if self._goal.higher_is_better is not None else ""
        return f"{self._goal.metric} {self._value:.4f}{best}"

    def _line(self, event: Round) -> str:
        pace = (self._ends[-1] - self._ends[0]) / max(len(self._ends) - 1, 1)
        loss = f"training loss {event.train_loss:.4f}  " if event.train_loss is not None else ""
        privacy = f"epsilon {event.epsilon:.3f}  " if event.epsilon is not None else ""
        return (
            f"round {event.round}/{self._plan.rounds}  {self._score()}  {loss}{privacy}{pace:.3f} s/round  "
            f"up {self._up / 1e6:.1f} MB  down {self._down / 1e6:.1f} MB  "
            f"left {clock((self._plan.rounds - event.round) * pace)}"
        )


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
