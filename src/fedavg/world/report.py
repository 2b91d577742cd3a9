"""The record of a round in a world, and the totals over the rounds of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fedavg.world.clock import Errand, Outcome
from fedavg.world.closing import Fate


@dataclass(frozen=True)
class ClockRow:
    """One round on the simulated clock, all its attempts together; times in seconds.

    It began at `began_s`, when the round before it ended, opened at `opened_s`, when `there` clients were there, and
    closed at `closed_s`; `waited_s` went by waiting for clients. Of `asked` clients some reported, were late, or
    dropped out. `spent_s` are the seconds for which devices worked; `wasted_s`, `wasted_up` and `wasted_down` are what
    led to no report. `groups` has for each group how many were there, were asked and reported. `staleness` is by how
    many versions the models of an asynchronous round were old.
    """

    began_s: float
    opened_s: float
    closed_s: float
    waited_s: float
    there: int
    asked: int
    reported: int
    late: int
    dropped: int
    spent_s: float
    wasted_s: float
    wasted_up: int
    wasted_down: int
    groups: Mapping[str, Sequence[int]]
    staleness: Mapping[str, float] = field(default_factory=dict)
    abandoned: tuple[str, ...] = ()

    def with_lost(self, lost: "Sequence[ClockRow]") -> "ClockRow":
        """This round together with its abandoned attempts, whose work was wasted."""
        if not lost:
            return self
        names = ("asked", "late", "dropped", "spent_s", "waited_s", "wasted_up", "wasted_down")
        sums = {name: getattr(self, name) + sum(getattr(row, name) for row in lost) for name in names}
        unused = sum(row.reported for row in lost)
        groups = {
            name: [there, asked + sum(row.groups[name][1] for row in lost), reported]
            for name, (there, asked, reported) in self.groups.items()
        }
        return replace(
            self,
            began_s=lost[0].began_s,
            **{**sums, "late": sums["late"] + unused},
            wasted_s=self.wasted_s + sum(row.spent_s for row in lost),
            groups=groups,
            abandoned=tuple(reason for row in lost for reason in row.abandoned),
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name not in ("staleness", "abandoned")}


def row_of_round(outcome: Outcome, errand: Errand, groups: np.ndarray, there: np.ndarray, waited: float) -> ClockRow:
    """A round of a cohort that started together."""
    fates = outcome.closed.fates
    nothing = bool(outcome.closed.reason)
    return ClockRow(
        began_s=outcome.opened - waited,
        opened_s=outcome.opened,
        closed_s=outcome.closed.at,
        waited_s=waited,
        there=int(np.count_nonzero(there)),
        asked=len(fates),
        reported=int(np.count_nonzero(fates == Fate.REPORTED)),
        late=int(np.count_nonzero(fates == Fate.LATE)),
        dropped=int(np.count_nonzero(fates == Fate.DROPPED)),
        spent_s=outcome.spent_s,
        wasted_s=outcome.wasted_s,
        wasted_up=outcome.sent_up if nothing else outcome.wasted_up,
        wasted_down=outcome.sent_down if nothing else outcome.wasted_down,
        groups=_by_group(groups, there, errand.clients, errand.clients[outcome.closed.reported]),
    )


def row_of_flights(
    times: tuple[float, float],
    counts: Mapping[str, Any],
    landed: np.ndarray,
    groups: np.ndarray,
    there: np.ndarray,
    sizes: tuple[int, int],
) -> ClockRow:
    """One step of an asynchronous server: from the end of the last step to its own end. `sizes` are bytes up and down;
    a client that drops out is assumed to have fetched the model and sent nothing."""
    old = counts["staleness"]
    return ClockRow(
        began_s=times[0],
        opened_s=times[0],
        closed_s=times[1],
        waited_s=0.0,
        there=int(np.count_nonzero(there)),
        asked=counts["asked"],
        reported=len(landed),
        late=0,
        dropped=counts["dropped"],
        spent_s=counts["spent_s"],
        wasted_s=counts["wasted_s"],
        wasted_up=0,
        wasted_down=counts["dropped"] * sizes[1],
        groups=_by_group(groups, there, landed, landed),
        staleness={"mean": float(np.mean(old)), "max": float(np.max(old))} if old else {},
    )


def _by_group(groups: np.ndarray, there: np.ndarray, asked: np.ndarray, reported: np.ndarray) -> dict[str, list[int]]:
    """For each group how many were there, were asked, and reported."""
    count = int(groups.max()) + 1
    columns = [np.bincount(groups[who], minlength=count) for who in (np.flatnonzero(there), asked, reported)]
    return {str(group): [int(column[group]) for column in columns] for group in range(count)}


def gini(counts: np.ndarray) -> float:
    """How unequal counts are: 0 if all are the same, near 1 if one has everything.

    >>> gini(np.array([1, 1, 1, 1])), gini(np.array([0, 0, 0, 4]))
    (0.0, 0.75)
    """
    total, n = float(counts.sum()), len(counts)
    if not total:
        return 0.0
    ranks = np.arange(1, n + 1)
    return float(2 * (ranks * np.sort(counts)).sum() / (n * total) - (n + 1) / n)


def described(rows: Sequence[Mapping[str, Any]], reported: np.ndarray | None = None) -> dict[str, Any]:
    """The totals over the rounds of a run; `reported` is how often each client reported, shape (K,), if that is known.

    `wasted` is the share of the devices' time that led to no report. `groups` has for each group its share of reports.
    `gini` is how unequally clients take part (0: all equally), and `never` how many have not reported once.
    """
    total = {name: sum(row[name] for row in rows) for name in ("asked", "late", "dropped", "spent_s", "wasted_s")}
    counts = {name: sum(row["groups"][name][2] for row in rows) for name in rows[0]["groups"]}
    everything = sum(counts.values()) or 1
    stale = [row["staleness"]["mean"] for row in rows if row.get("staleness")]
    found: dict[str, Any] = {
        "hours": rows[-1]["closed_s"] / 3600,
        "waited_hours": sum(row["waited_s"] for row in rows) / 3600,
        "asked": total["asked"],
        "late": total["late"] / max(total["asked"], 1),
        "dropped": total["dropped"] / max(total["asked"], 1),
        "wasted": total["wasted_s"] / max(total["spent_s"], 1e-9),
        "wasted_bytes": sum(row["wasted_up"] + row["wasted_down"] for row in rows),
        "abandoned": sum(len(row.get("abandoned", ())) for row in rows),
        "groups": {name: count / everything for name, count in counts.items()},
    }
    if stale:
        found["staleness"] = float(np.mean(stale))
    if reported is not None:
        found |= {"gini": gini(reported), "never": int(np.count_nonzero(reported == 0))}
    return found
