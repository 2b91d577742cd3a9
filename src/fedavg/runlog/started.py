"""What the user's own parts were when a run started: they are compared when it is resumed.

For a name of the package its text is enough. A part given as an object, or by its import name, is recorded aspect by
aspect, so that a difference can be named. A task is also recorded by what it computes: the parameters,
the initial weights, and loss and gradient on the first examples of the test set, if there is one.
"""

from collections.abc import Container, Mapping
from math import isclose
from pathlib import Path
from typing import Any, Final

from fedavg import seeds, trees
from fedavg.engine.trainer import Trainer
from fedavg.errors import RunDirError
from fedavg.plan import Plan, part_options
from fedavg.plan.identity import digest, identity
from fedavg.setup import Setup
from fedavg.specs import is_import, make
from fedavg.world import make_world

#: Examples that a task is tried on.
_PROBED: Final = 8
#: Machines round differently; another loss or module differs by more.
_ROUNDING: Final = 1e-3

Aspects = dict[str, Any]


def own_parts(plan: Plan, chosen: Container[str] | None = None) -> dict[str, Aspects]:
    """By option, what each of the user's own parts is, and the file that a world is read from. Data is not included: it
    has a fingerprint."""
    options = {name: parser for name, parser in part_options().items() if chosen is None or name in chosen}
    found: dict[str, Aspects] = {}
    for name, part in plan.parts():
        if name not in options:
            continue
        base = options[name].base()
        if not isinstance(part, str) or is_import(part, base):
            place = name if name not in found else f"{name} {len(found)}"
            found[place] = dict(identity(make(part, base)))
    if plan.world is not None and "world" in options and (content := make_world(plan.world).fingerprint):
        found["world"] = {**found.get("world", {}), "content": content}
    return found


def started_with(setup: Setup) -> dict[str, dict[str, Aspects]]:
    """What the record of a run says about the user's own parts."""
    parts = own_parts(setup.plan)
    return {"parts": parts, "computed": {"task": _computed(setup)} if "task" in parts else {}}


def check_same(recorded: Mapping[str, Aspects], now: Mapping[str, Aspects], run: Path) -> None:
    """Refuse a run whose parts differ from those it was started with, and say which."""
    for option in [*recorded, *(name for name in now if name not in recorded)]:
        before, after = recorded.get(option, {}), now.get(option, {})
        for aspect in [*before, *(name for name in after if name not in before)]:
            if not _same(before.get(aspect), after.get(aspect)):
                raise RunDirError(
                    f"{option}: {run} was started with another one: {aspect} was {before.get(aspect)}, and is "
                    f"{after.get(aspect)} now. Resume with the {option} it was started with, or start a new run"
                )


def _same(before: object, after: object) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return isclose(before, after, rel_tol=_ROUNDING, abs_tol=1e-6)
    return before == after


def _computed(setup: Setup) -> Aspects:
    """What the task's module and loss compute, as numbers that any machine reproduces."""
    trainer = Trainer(setup.task, setup.plan.seed, setup.plan.device)
    found: Aspects = {
        "parameters": digest([[slot.name, list(slot.shape)] for slot in trainer.model.slots]),
        "initial weights": float(trainer.weights.double().norm()),
    }
    if setup.test:
        with trainer.seeded(seeds.torch_seed(setup.plan.seed, seeds.NONE, seeds.NONE, "identity")):
            gradient, loss = trainer.gradient(trees.take(setup.test, slice(0, _PROBED)))
        found |= {"loss on test examples": float(loss), "gradient on test examples": float(gradient.double().norm())}
    return found
