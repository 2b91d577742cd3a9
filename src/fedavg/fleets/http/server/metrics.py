"""Metrics for operators, in the Prometheus text format."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Requests:
    """Counts answers by status and refusals by reason."""

    def __init__(self) -> None:
        self.by_status: Counter[int] = Counter()
        self.by_reason: Counter[str] = Counter()

    def answered(self, status: int) -> None:
        self.by_status[status] += 1

    def refused(self, reason: str) -> None:
        self.by_reason[reason] += 1


class Updates:
    """Counts updates, and reports from clients that send none. Not thread-safe: the hub's lock guards it."""

    def __init__(self) -> None:
        self.accepted = 0
        #: How many of these counted for less than they asked.
        self.capped = 0
        self.refused: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()


@dataclass(frozen=True)
class Uploads:
    """Uploads that wait for their turn to be in memory, and uploads in memory."""

    waiting: int
    under_way: int


class Progress:
    """How the rounds of a run have gone since this process began to serve it. Only the server loop changes it."""

    def __init__(self) -> None:
        #: The last committed round as plain values; empty before the first.
        self.last: Mapping[str, Any] = {}
        #: The last evaluations of the model, by the examples that it was judged on.
        self.judged: dict[str, Mapping[str, Any]] = {}
        self.rounds = 0
        self.seconds = 0.0
        self.abandoned = 0
        #: Consecutive failures since the last committed round.
        self.failed_attempts = 0
        #: Clients that were asked and are in no sum, by reason.
        self.missing: Counter[str] = Counter()

    def committed(self, row: Mapping[str, Any]) -> None:
        self.last, self.failed_attempts = row, 0
        self.rounds += 1
        self.seconds += row["seconds"]
        on_clients = (row.get("on_clients") or {}).get("metrics")
        found = {"test": row["test"], "clients": on_clients, "training": {"loss": row["train_loss"]}}
        self.judged |= {on: values for on, values in found.items() if values}

    def gave_up(self) -> int:
        """Count an abandoned attempt; returns how many there have been in a row."""
        self.abandoned += 1
        self.failed_attempts += 1
        return self.failed_attempts

    def status(self) -> dict[str, Any]:
        """The part that operators see."""
        shown = ("round", "clients", "seconds", "train_loss", "test", "on_clients")
        return {
            "last_round": {name: self.last[name] for name in shown if name in self.last} or None,
            "attempts_abandoned": self.abandoned,
            "clients_missing": dict(self.missing),
        }


def render(
    status: Mapping[str, Any],
    progress: Progress,
    requests: Requests,
    uploads: Uploads,
    runs: Mapping[str, int],
    operator: bool,
) -> str:
    """The state of a server and its counters. What clients measured is shown only to operators."""
    lines: list[str] = []

    def metric(name: str, kind: str, help: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP fedavg_{name} {help}", f"# TYPE fedavg_{name} {kind}"))
        lines.extend(f"fedavg_{name}{labels} {value}" for labels, value in values.items())

    def gauge(name: str, help: str, value: float) -> None:
        metric(name, "gauge", help, {"": value})

    def counter(name: str, help: str, value: float) -> None:
        metric(name, "counter", help, {"": value})

    def counted(name: str, help: str, values: Mapping[Any, int], label: str = "reason") -> None:
        metric(name, "counter", help, {f'{{{label}="{key}"}}': count for key, count in sorted(values.items())})

    current, last = status["round"] or {}, progress.last
    gauge("committed_round", "The last committed round.", status["committed"])
    gauge("clients", "Clients that are enrolled.", status["clients"])
    gauge("clients_present", "Clients that are there and eligible.", status["present"])
    gauge("clients_resting", "Clients that are not invited for a while.", status["resting"])
    gauge("clients_revoked", "Clients that were shut out for good.", status["revoked"])
    gauge("held_polls", "Polls that are held open.", status["held_polls"])
    gauge("uploads_waiting", "Uploads that wait for room in memory.", uploads.waiting)
    gauge("uploads_under_way", "Uploads that are in memory.", uploads.under_way)
    gauge("round_invited", "Clients invited to the round under way.", current.get("invited", 0))
    gauge("round_accepted", "Updates in the sum of the round under way.", current.get("accepted", 0))
    gauge("round_failed", "Clients of the round under way that failed or declined.", current.get("failed", 0))
    gauge("round_cohort", "Clients whose updates are in the last committed round.", last.get("clients", 0))
    gauge("round_last_seconds", "Seconds that the last committed round took.", last.get("seconds", 0.0))
    counter("round_seconds_total", "Seconds that all committed rounds took.", progress.seconds)
    counter("rounds_total", "Rounds committed.", progress.rounds)
    counter("attempts_abandoned_total", "Attempts at rounds that were abandoned.", progress.abandoned)
    gauge("attempts_failed", "Attempts abandoned since a round was committed.", progress.failed_attempts)
    metric("model_metric", "gauge", "What the last judged model came to, by metric, and on which examples.",
           _judged(progress.judged, operator))  # fmt: skip
    queue = {f'{{state="{state}"}}': count for state, count in sorted(runs.items())}
    metric("runs", "gauge", "Runs of a service, by state: those that are queued wait for their turn.", queue)
    counter("updates_accepted_total", "Updates taken into a sum.", status["updates_accepted"])
    counter("updates_capped_total", "Updates that count for less than they said.", status["updates_capped"])
    counted("updates_refused_total", "Updates refused, by reason.", status["updates_refused"])
    counted("reports_total", "Clients that did not take part in a round, by their reason.", status["reports"])
    counted("clients_missing_total", "Clients that were asked and are in no sum, by reason.", progress.missing)
    counted("requests_total", "Requests answered, by status.", requests.by_status, "status")
    counted("requests_refused_total", "Requests refused, by reason.", requests.by_reason)
    return "\n".join(lines) + "\n"


def _judged(judged: Mapping[str, Mapping[str, Any]], operator: bool) -> dict[str, float]:
    return {
        f'{{metric="{name}",on="{on}"}}': value
        for on, values in judged.items()
        if operator or on == "test"
        for name, value in values.items()
        if value is not None
    }
