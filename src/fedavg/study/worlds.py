"""How a world affects learning: three studies, each a few runs of the same plan under different conditions.

    daynight   half of the clients, with half of the labels, are only sometimes there
    async      a cohort that starts together, with and without over-selection, against FedBuff
    closing    all, a deadline or a quorum, where slow devices have labels of their own

Runs are recorded in directories and can be resumed; the result of each study is one JSON file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedavg import seeds
from fedavg.campaign.execute import Say
from fedavg.errors import RunDirError
from fedavg.plan import Plan, load_plan
from fedavg.runlog.rundir import RunDir
from fedavg.runner import Result, resume, run
from fedavg.server import Event, Round
from fedavg.world.presence import DAY_S, HOUR_S
from fedavg.world.trace import write_trace


@dataclass(frozen=True)
class Study:
    """Cases by name, each a plan. `groups` are the labels that each group of clients has, if they have their own."""

    name: str
    title: str
    cases: Mapping[str, Plan]
    groups: Sequence[Sequence[int]] = ()


#: 1,000 clients of 60 examples each: a round of ten is small, so that a study takes minutes.
_BASE = Plan(task="mnist-2nn", data="mnist", clients=1000, C=0.01, E=1, B=10, lr=0.1)
_HALVES = (range(5), range(5, 10))


def daynight(directory: Path) -> Study:
    """Clients with the digits 0 to 4 are always there. Those with 5 to 9 are there only from 20:00 to 24:00 (night), or
    2.4 hours a day, each at its own time (seldom). A round takes 20 minutes; a run lasts two and a half days."""
    files = {name: _presence(directory, name) for name in ("night", "seldom")}
    base = replace(_BASE, partition="zoned:2", metrics=["class_accuracy:10"], rounds=180, eval_every=3)
    cases = {"always there": replace(base, world="always:alike:speed=0.05")}
    for name, path in files.items():
        world = f"trace:{path}:devices=alike:speed=0.05"
        cases[f"{name}, fixed"] = replace(base, world=world)
        cases[f"{name}, corrected"] = replace(base, world=world, sampling="corrected")
    return Study("daynight", "Who is there goes with the data", cases, _HALVES)


def asynchronous(directory: Path) -> Study:
    """Devices whose speeds differ by a log-normal factor with standard deviation 1; one of twenty fails. 26 clients
    work at a time: the server waits for all of them, for the first 20, or uses FedBuff with a buffer of 5."""
    base = replace(_BASE, E=2, target=0.93, eval_every=2, world="always:lognormal:speed=1.0:spread=1.0:dropout=0.05")
    cases = {
        "26, all waited for": replace(base, C=0.026, rounds=150),
        "26, the first 20 count": replace(base, C=0.02, closing="all:1.3", rounds=200),
        "FedBuff, 26 at work, buffer 5": replace(base, C=0.026, algorithm="fedbuff:5", rounds=900, eval_every=8),
        "FedBuff, 26 at work, buffer 10": replace(base, C=0.026, algorithm="fedbuff:10", rounds=500, eval_every=4),
    }
    return Study("async", "Together or one by one", cases)


def closing(directory: Path) -> Study:
    """Clients with the digits 5 to 9 have devices three times as slow as the others."""
    world = f"trace:{_slow_half(directory)}"
    base = replace(
        _BASE, C=0.02, partition="zoned:2", metrics=["class_accuracy:10"], rounds=120, eval_every=3, world=world
    )
    cases = {
        "all": base,
        "deadline 60 s": replace(base, closing="deadline:60:minimum=0.2"),
        "deadline 120 s": replace(base, closing="deadline:120:minimum=0.2"),
        "quorum 0.7": replace(base, closing="quorum:0.7"),
        "first 20 of 26": replace(base, closing="all:1.3"),
    }
    return Study("closing", "When a round has enough", cases, _HALVES)


STUDIES: dict[str, Callable[[Path], Study]] = {"daynight": daynight, "async": asynchronous, "closing": closing}


def measure(
    name: str, directory: Path, say: Say, workers: int = 1, rounds: int | None = None, data_dir: str | None = None
) -> dict[str, Any]:
    """Run or continue the cases of a study, and return what is kept of them; `rounds` shortens all of them."""
    directory.mkdir(parents=True, exist_ok=True)
    study = STUDIES[name](directory)
    kept = {}
    for case, plan in study.cases.items():
        say(f"{study.name}: {case}")
        plan = replace(plan, workers=workers, data_dir=data_dir, rounds=min(rounds or plan.rounds, plan.rounds))
        kept[case] = _kept(study, _ran(plan, directory / _file_name(case), say))
    return {"study": study.name, "title": study.title, "cases": kept}


def save(record: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n")


def _ran(plan: Plan, directory: Path, say: Say) -> Result:
    """A run of the plan in the directory: a new one, or the one that the same plan started there."""

    def watch(event: Event) -> None:
        if isinstance(event, Round) and event.round % 30 == 0 and event.world:
            say(f"  round {event.round}, hour {event.world['closed_s'] / HOUR_S:.1f}")

    if not (directory / "run.json").exists():
        return run(plan, directory, watch)
    if load_plan(str(directory / "plan.toml"), {}).digest != plan.digest:
        raise RunDirError(f"{directory} holds a run of another plan; expected another --runs, or that it is deleted")
    return resume(directory, watch)


def _kept(study: Study, result: Result) -> dict[str, Any]:
    """A case as plain values: curves over simulated hours, and the summary of its world."""
    rows = [row for row in _rows(result) if row["test"]]
    found: dict[str, Any] = {
        "plan": {name: value for name, value in result.plan.to_dict(runtime=False).items() if name in _SHOWN},
        "hours": [round(row["world"]["closed_s"] / HOUR_S, 3) for row in rows],
        "rounds": [row["round"] for row in rows],
        "accuracy": [round(row["test"]["accuracy"], 4) for row in rows],
        "rounds_to_target": result.summary.rounds_to_target,
        "bytes": result.summary.bytes_up + result.summary.bytes_down,
        "model_sha256": result.summary.model_sha256,
        "world": result.summary.world,
    }
    if study.groups:
        found["groups"] = [[round(_of_classes(row["test"], own), 4) for row in rows] for own in study.groups]
    return found


_SHOWN = ("algorithm", "C", "E", "B", "lr", "partition", "world", "closing", "sampling", "rounds", "target", "seed")


def _rows(result: Result) -> list[dict[str, Any]]:
    return RunDir(Path(str(result.summary.run_dir))).rows()


def _of_classes(test: Mapping[str, float], classes: Sequence[int]) -> float:
    """The mean accuracy of some classes: on MNIST about that of a group with these labels."""
    return float(np.mean([test[f"class_accuracy.{label}"] for label in classes]))


def _presence(directory: Path, name: str) -> Path:
    """A trace of a day: even clients are always there, odd ones at night, or a tenth of the day at their own time."""
    begin = seeds.rng(0, seeds.NONE, seeds.NONE, "seldom").random(1000) * 0.9 * DAY_S
    night = (20 * HOUR_S, DAY_S)
    rows = []
    for k in range(1000):
        own = night if name == "night" else (float(begin[k]), float(begin[k]) + 0.1 * DAY_S)
        start, end = own if k % 2 else (0.0, DAY_S)
        rows.append({"client": k, "from": start, "to": end, "group": k % 2})
    write_trace(directory / f"{name}.jsonl", rows)
    return directory / f"{name}.jsonl"


def _slow_half(directory: Path) -> Path:
    """Always there; odd clients are three times as slow, and all differ by a log-normal factor."""
    factor = np.exp(0.5 * seeds.rng(0, seeds.NONE, seeds.NONE, "slow half").standard_normal(1000))
    rows = [
        {"client": k, "from": 0.0, "to": DAY_S, "group": k % 2, "speed": float(f / (3 if k % 2 else 1)), "up": 1.0}
        for k, f in enumerate(factor)
    ]
    write_trace(directory / "slow.jsonl", rows)
    return directory / "slow.jsonl"


def _file_name(case: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in case)
