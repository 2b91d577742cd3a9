"""`Order`: what a run is asked to do, as a file beside its run directory.

The process that gives the order may change it during the run: a lower cap ends the run after its current round.
"""

import json
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from fedavg.files import write_atomically
from fedavg.plan import Plan, make_plan


@dataclass(frozen=True)
class Order:
    """Run this plan until the target or the cap; `stopped` and `reason` name a stop at the cap."""

    plan: dict[str, Any]
    target: float | None
    cap: int
    stopped: str
    reason: str
    train_sample: int
    command: str
    #: What the run is judged by; `thrifty`: it ends if its accuracy has fallen back for good.
    metric: str = "accuracy"
    thrifty: bool = True

    def to_plan(self) -> Plan:
        return make_plan(self.plan)


def plan_values(plan: Plan) -> dict[str, Any]:
    """The plan with its runtime options, as values that JSON has."""
    return {name: "inf" if value == inf else value for name, value in plan.to_dict().items()}


def write_order(path: Path, order: Order) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(asdict(order), indent=2) + "\n").encode())


def read_order(path: Path) -> Order:
    return Order(**json.loads(path.read_text()))


def run_directory(order_path: Path) -> Path:
    """The run directory of an order: runs/paper/DIGEST beside runs/paper/DIGEST.json."""
    return order_path.with_suffix("")
