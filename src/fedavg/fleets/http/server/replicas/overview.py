"""The status of all replicas together, as any of them reports it: clients and operators see one server."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedavg.fleets.http.server.store.heartbeats import Heartbeat

Status = Mapping[str, Any]

#: Counted by each replica for itself; the total is the sum.
_NUMBERS: Final = ("updates_accepted", "updates_capped", "held_polls")
_BY_REASON: Final = ("updates_refused", "reports", "requests_refused")
#: Known only to the leader: it learns from all others which clients are there, and decides which ones rest.
_LEADERS: Final = ("present", "resting")
#: The fields of a status that a heartbeat carries.
_TOLD: Final = (*_NUMBERS, *_BY_REASON, *_LEADERS)


def told(status: Status) -> dict[str, Any]:
    """The part of a replica's status that the others need."""
    return {name: status[name] for name in _TOLD if name in status}


def overview(own: Status, me: int, beats: Sequence[Heartbeat], since_s: float, operator: bool) -> dict[str, Any]:
    """One status over all replicas. `beats` are `since_s` seconds old; this replica's own numbers are current.

    Only the operator sees the replicas' addresses.
    """
    parts = [own, *(beat.status for beat in beats if beat.replica != me)]
    leader = max((beat for beat in beats if beat.term is not None), key=lambda beat: beat.term or 0, default=None)
    found = dict(own)
    found |= {name: sum(part.get(name, 0) for part in parts) for name in _NUMBERS}
    found |= {name: _added(part.get(name, {}) for part in parts) for name in _BY_REASON if name in own}
    if leader is not None and leader.replica != me:
        found |= {name: leader.status[name] for name in _LEADERS}
    found["replicas"] = [_shown(beat, own if beat.replica == me else beat.status, beat is leader, since_s, operator)
                         for beat in beats]  # fmt: skip
    return found


def _added(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _shown(beat: Heartbeat, status: Status, leads: bool, since_s: float, operator: bool) -> dict[str, Any]:
    shown = {
        "name": f"{beat.replica:016x}"[-8:],
        "leads": leads,
        "heard_s_ago": round(beat.ago_s + since_s, 1),
        "updates_accepted": status["updates_accepted"],
        "held_polls": status["held_polls"],
    }
    return shown | ({"url": beat.url} if operator else {})
