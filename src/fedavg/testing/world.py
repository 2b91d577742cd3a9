"""What every world must do."""

from typing import Any

import numpy as np

from fedavg.testing.problem import check_repeats, check_text, require, small_plan
from fedavg.world import World
from fedavg.world.presence import DAY_S, PresentNow

#: Clients that it is tried with, and for how long.
_CLIENTS, _DAYS = 12, 3


def check_world(world: World, **options: Any) -> None:
    """Its intervals are in order and depend on the seed alone; a run in it can be repeated and resumed.

    >>> from fedavg.world import Markov
    >>> check_world(Markov(on=2.0, off=1.0), closing="all:needs=0.1")
    """
    what = f"world {world!r}"
    require(isinstance(world, World), f"{what} is not a fedavg.World; derive its class from it")
    check_text(world, World, what)
    groups = np.asarray(world.groups(_CLIENTS))
    require(
        groups.shape == (_CLIENTS,) and groups.dtype.kind == "i" and int(groups.min()) == 0,
        f"{what}: groups({_CLIENTS}) gave {groups!r}; expected a whole number from 0 for each client",
    )
    empty = np.setdiff1d(np.arange(groups.max() + 1), groups)
    require(not len(empty), f"{what}: no client is in group {empty}; expected every group to have some")
    _check_presence(world, what)
    plan = small_plan(world=world, **{"closing": "all:needs=0.2", **options})
    check_repeats(plan, what)


def _check_presence(world: World, what: str) -> None:
    often, once = (PresentNow(world.presence(_CLIENTS, seed=7)) for _ in range(2))
    for at in np.arange(0, _DAYS * DAY_S, DAY_S / 48):
        before = often.end.copy()
        often.advance(float(at))
        require(bool((often.end > at).all()), f"{what}: an interval does not end after the one before it")
        require(bool((often.start < often.end).all() or np.isinf(often.end).any()), f"{what}: an interval is empty")
        moved = often.end != before
        require(
            bool((often.start[moved] >= before[moved]).all()),
            f"{what}: a client comes again before it has left; expected intervals in rising order",
        )
    once.advance(float(at))
    require(
        np.array_equal(often.start, once.start) and np.array_equal(often.end, once.end),
        f"{what}: who is there depends on when one looks; draw by seed, client and turn alone, and keep nothing",
    )
