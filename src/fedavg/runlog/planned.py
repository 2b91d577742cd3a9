"""The plan of a resumed run: plan.toml, with the objects that it cannot hold and the changes that are allowed."""

import tomllib
from collections.abc import Container, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedavg.errors import PlanError, RunDirError
from fedavg.plan import Plan, make_plan
from fedavg.runlog.started import Aspects, check_same, own_parts


def resumed_plan(run: Path, identity: Mapping[str, Any], changes: Mapping[str, Any]) -> Plan:
    """The plan as it was when the run started, with runtime options changed, and more rounds if requested.

    Objects from Python must be given again, since no file holds them. Any other change is refused.
    """
    file = run / "plan.toml"
    values = _values(file, changes)
    objects = {name: value for name, value in changes.items() if _is_object(values, name)}
    try:
        begun = make_plan(values | objects, str(file))
    except PlanError as error:
        raise RunDirError(f"{file} cannot be used: {error}") from None
    recorded = identity.get("parts", {})
    check_same(_of(objects, recorded), _of(objects, own_parts(begun, objects)), run)
    if begun.digest not in known_digests(identity):
        raise RunDirError(
            f"{file} has been changed since the run was started (digest {begun.digest}; expected "
            f"{identity['plan']}). Undo the change, or start a new run: fedavg run {file}"
        )
    check_same(recorded, own_parts(begun), run)
    plan = make_plan(_options(begun) | dict(changes), str(run))
    _check_changes(run, begun, plan)
    return plan


def _of(options: Container[str], parts: Mapping[str, Aspects]) -> dict[str, Aspects]:
    return {name: aspects for name, aspects in parts.items() if name.partition(" ")[0] in options}


def known_digests(identity: Mapping[str, Any]) -> list[str]:
    """The digest of the run's plan, and those that it had before it was made longer."""
    return [identity["plan"], *identity.get("earlier", ())]


def as_planned(row: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """In an extended run, drop the evaluation of a round that was evaluated only because it was the last."""
    if not row["round"] % plan.eval_every or row["round"] == plan.rounds:
        return row
    judged = {"test": None, "train": None}
    return {name: judged.get(name, value) for name, value in row.items() if name != "on_clients"}


def _values(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """What plan.toml says; objects that it cannot hold must be among `given`."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunDirError(f"{file} cannot be used: {error}; expected it as it was") from None
    missing = [name for name in values if _is_object(values, name) and name not in given]
    if missing:
        wanted = ", ".join(f"{name}=..." for name in missing)
        raise RunDirError(
            f"{file.parent} was started from Python with objects that no file can hold ({', '.join(missing)}); "
            f"give them again: fedavg.resume({str(file.parent)!r}, {wanted})"
        )
    return values


def _is_object(values: Mapping[str, Any], name: str) -> bool:
    """True if plan.toml only says that there was an object."""
    items = values.get(name)
    return any(str(item).startswith("object:") for item in (items if isinstance(items, list) else [items]))


def _options(plan: Plan) -> dict[str, Any]:
    return {spec.name: getattr(plan, spec.name) for spec in fields(Plan)}


def _check_changes(run: Path, begun: Plan, plan: Plan) -> None:
    for spec in fields(Plan):
        before, after = getattr(begun, spec.name), getattr(plan, spec.name)
        if spec.metadata["runtime"] or before == after:
            continue
        if spec.name != "rounds":
            raise RunDirError(
                f"{spec.name}: {run} was started with {before}; got {after}. A run keeps its plan: only rounds may be "
                "raised and runtime options changed; start a new run for others"
            )
        if after < before:
            raise RunDirError(f"rounds: {run} has {before}; got {after}. A run can only be made longer")
    for round in range(1, begun.rounds + 1):
        if plan.work(round) != begun.work(round):
            raise RunDirError(
                f"rounds: {run} has {begun.rounds} and lr '{begun.lr}', which depends on them: round {round} would "
                "have been another. Start a new run, or plan with a rate that says its rounds: 'cosine:0.1:rounds=9'"
            )
