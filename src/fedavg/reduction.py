"""From the single updates of a cohort to the sum that the server half sees, for plans with a reducer or with liars.

Fleets only gather the updates, in memory. What liars that see the honest ones send is forged here, and the rule is
applied here: so it is the same wherever clients run.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, isfinite
from typing import Final

import numpy as np
import torch

from fedavg import seeds
from fedavg.attacks import View
from fedavg.errors import PlanError
from fedavg.fleets.attendance import Attendance, see
from fedavg.fleets.fleet import CohortResult, Fleet
from fedavg.robust import Defence, Rows, TooFew
from fedavg.setup import Setup
from fedavg.sums import ExactSum, to_float
from fedavg.types import Cohort, Part, Slots, Sum, Update, Work

log = logging.getLogger("fedavg.run")

#: Under which name a rule that remembers keeps the last round's result.
_PREVIOUS: Final = "previous"


def check_gathering(setup: Setup, fleet: Fleet) -> None:
    """Refuse a fleet that cannot give single updates where they are needed."""
    if setup.single_updates and not fleet.gives_singles:
        what = f"reducer: got '{setup.plan.reducer}'" if setup.defence else f"attack: got '{setup.plan.attack}'"
        raise PlanError(
            f"{what}, which must see single updates, and {type(fleet).__name__} gives only their sum; expected "
            "fleet 'local' or 'ray', or a server over HTTP"
        )


def who_trains(setup: Setup, parts: Sequence[Part]) -> Sequence[Part]:
    """The parts without liars that need not train, since they forge their updates from those of the others."""
    if not setup.liars_see_all:
        return parts
    return [replace(part, cohort=[k for k in part.cohort if k not in setup.attackers]) for part in parts]


def reduced(setup: Setup, cohort: Cohort, result: CohortResult, work: Work, kept: Slots) -> tuple[CohortResult, Slots]:
    """The result with a sum in place of single updates, and what the rule keeps for the next round.

    `kept` is what it kept after the last one. Updates that are not finite are left out, as over the network; if too few
    are left for the rule the round changes nothing.
    """
    if result.singles is None:
        return result, kept
    previous = kept[_PREVIOUS].numpy() if _PREVIOUS in kept else None
    told = _with_lies(setup, cohort, result, work, previous)
    if setup.defence is None:
        return replace(told, total=_weighted(told), singles=None), kept
    updates = _finite(told.singles or {})
    told = _without(told, sorted(set(told.singles or {}) - set(updates)), work.round)
    try:
        vector = _reduce(setup, setup.defence, updates, work, previous)
    except TooFew as error:
        log.warning("round %d changes nothing: %s", work.round, error)
        return replace(told, total=_nothing(told), singles=None), kept
    weight = fsum(update.weight for update in updates.values())
    total = replace(told.total, vector=torch.from_numpy(vector) * weight, weight=weight, count=len(updates))
    if setup.defence.reducer.remembers:
        kept = {_PREVIOUS: torch.from_numpy(vector).float()}
    return replace(told, total=total, singles=None), kept


def _reduce(
    setup: Setup, defence: Defence, updates: Mapping[int, Update], work: Work, previous: np.ndarray | None
) -> np.ndarray:
    if not updates:
        raise TooFew("no update is left; expected some")
    rows = Rows.of([update.vector.numpy() for update in updates.values()])
    return defence.reduce(rows, seeds.rng(setup.plan.seed, work.round, seeds.NONE, "reducer"), previous)


def _with_lies(
    setup: Setup, cohort: Cohort, result: CohortResult, work: Work, previous: np.ndarray | None
) -> CohortResult:
    """The updates in the order of the clients' numbers, with those that liars forge from the honest ones."""
    honest = dict(sorted((result.singles or {}).items()))
    liars = _liars_there(setup, cohort, result) if setup.liars_see_all else []
    if not liars or not honest:
        return replace(result, singles=honest)
    assert setup.attack, "there are liars"
    assert setup.population, "liars were drawn from it"
    assert setup.population.sizes is not None, "liars were drawn from it"
    rng = seeds.rng(setup.plan.seed, work.round, seeds.NONE, "attack")
    rows = Rows.of([update.vector.numpy() for update in honest.values()])
    view = View(rows, len(liars), setup.defence or Defence(), rng, previous)
    forged = torch.from_numpy(np.array(setup.attack.forge(view), np.float32))
    lies = {k: setup.arrived(forged, float(setup.population.sizes[k]), work) for k in liars}
    return replace(
        result,
        singles=dict(sorted((honest | lies).items())),
        # A lie looks like any other message: it is as long as the longest, and liars fetch the model as all do.
        bytes_up=result.bytes_up + len(lies) * result.largest_up,
        bytes_down=result.bytes_down + len(lies) * (result.bytes_down // len(honest)),
        attendance=result.attendance and _with_liars(setup, result.attendance, cohort, lies),
    )


def _liars_there(setup: Setup, cohort: Cohort, result: CohortResult) -> list[int]:
    """Those of the cohort that a simulated world did not keep away."""
    missing = result.attendance.missing.values() if result.attendance else ()
    return sorted(setup.attackers.intersection(cohort.clients).difference(*missing))


def _with_liars(setup: Setup, there: Attendance, cohort: Cohort, lies: Mapping[int, Update]) -> Attendance:
    seen = {k: see(lie, setup.plan.seed) for k, lie in lies.items()} if setup.shows_updates else {}
    return replace(there, asked=len(cohort.clients), seen={**there.seen, **seen})


def _finite(updates: Mapping[int, Update]) -> dict[int, Update]:
    return {k: update for k, update in updates.items() if _is_finite(update)}


def _without(result: CohortResult, left_out: Sequence[int], round: int) -> CohortResult:
    """The result, with a word on those whose updates do not count."""
    if not left_out:
        return result
    log.info("round %d: the updates of clients %s are not finite, and are left out", round, left_out)
    there = result.attendance
    return replace(result, attendance=there and replace(there, missing={**there.missing, "not finite": left_out}))


def _is_finite(update: Update) -> bool:
    return isfinite(update.weight) and all(isfinite(float(end)) for end in update.vector.aminmax())


def _weighted(result: CohortResult) -> Sum:
    """The plain weighted sum, where only the liars had to see single updates."""
    updates = list((result.singles or {}).values())
    ring = torch.zeros(len(updates[0].vector) if updates else 0, dtype=torch.int64)
    total = ExactSum(ring)
    for update in updates:
        total.add(update.vector, update.weight)
    weight = fsum(update.weight for update in updates)
    return replace(result.total, vector=to_float(ring), weight=weight, count=len(updates))


def _nothing(result: CohortResult) -> Sum:
    size = next((len(update.vector) for update in (result.singles or {}).values()), 0)
    return replace(result.total, vector=torch.zeros(size, dtype=torch.float64), weight=0.0, count=0)
