"""What operators watch, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Mapping
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
    """Counts updates, and the reports of those who send none. Not thread-safe: the hub's lock guards it."""

    def __init__(self) -> None:
        self.accepted = 0
        #: Of these, how many counted for less than they asked.
        self.capped = 0
        self.refused: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()


def render(status: Mapping[str, Any], requests: Requests) -> str:
    """The state of a server and its counters."""
    lines: list[str] = []

    def metric(name: str, kind: str, help: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP fedavg_{name} {help}", f"# TYPE fedavg_{name} {kind}"))
        lines.extend(f"fedavg_{name}{labels} {value}" for labels, value in values.items())

    current = status["round"] or {}
    metric("committed_round", "gauge", "The last committed round.", {"": status["committed"]})
    metric("clients", "gauge", "Clients that are enrolled.", {"": status["clients"]})
    metric("clients_present", "gauge", "Clients that are there and eligible.", {"": status["present"]})
    metric("held_polls", "gauge", "Polls that are held open.", {"": status["held_polls"]})
    metric("round_invited", "gauge", "Clients invited to the round under way.", {"": current.get("invited", 0)})
    metric("round_accepted", "gauge", "Updates in the sum of the round under way.", {"": current.get("accepted", 0)})
    metric("updates_accepted_total", "counter", "Updates taken into a sum.", {"": status["updates_accepted"]})
    refused = {f'{{reason="{reason}"}}': count for reason, count in sorted(status["updates_refused"].items())}
    metric("updates_refused_total", "counter", "Updates refused, by reason.", refused)
    reports = {f'{{reason="{reason}"}}': count for reason, count in sorted(status["reports"].items())}
    metric("reports_total", "counter", "Clients that did not take part in a round, by their reason.", reports)
    answers = {f'{{status="{code}"}}': count for code, count in sorted(requests.by_status.items())}
    metric("requests_total", "counter", "Requests answered, by status.", answers)
    reasons = {f'{{reason="{reason}"}}': count for reason, count in sorted(requests.by_reason.items())}
    metric("requests_refused_total", "counter", "Requests refused, by reason.", reasons)
    return "\n".join(lines) + "\n"
