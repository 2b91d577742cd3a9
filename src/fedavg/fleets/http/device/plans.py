"""The plan that a server sends, as this device reads it. Only code that the device's owner named is imported."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets.http.device.policy import MOST_CLIENTS, Declined
from fedavg.fleets.http.device.runs import TakenRun
from fedavg.plan import Plan, make_plan
from fedavg.setup import Setup, resolve_on_device, served
from fedavg.specs import importing_only
from fedavg.tasks import Task


@dataclass(frozen=True)
class PlanOnDevice:
    """The plan as sent, and the same plan with this device's own settings."""

    sent: Plan
    setup: Setup


def resolve_sent(run: TakenRun, tasks: Mapping[str, Task], allowed: Sequence[str], device: str = "cpu") -> PlanOnDevice:
    """The server's plan for one of this device's tasks, with parts from the allowed packages only.

    `device` is what PyTorch computes on here, whatever the plan says.
    """
    try:
        values = tomllib.loads(run.plan)
        sent = make_plan(values, "the server's plan")
    except FedAvgError:
        raise
    except Exception as error:  # any failure of a parser on an untrusted text is the sender's fault
        raise FleetError(f"the server's plan cannot be read: {str(error)[:200]}") from None
    task = str(sent.task)
    if task not in tasks:
        raise FleetError(f"the server's plan is for task '{task}'; this device has {_listed(tasks)}")
    if sent.digest != run.plan_digest:
        raise FleetError(
            f"the server's plan has digest {sent.digest} here, not {run.plan_digest}: use the server's version"
        )
    if (sent.clients or 0) > MOST_CLIENTS:
        raise Declined("bad-plan", f"the server's plan has {sent.clients} clients; expected at most {MOST_CLIENTS}")
    own = {spec.name: getattr(Plan(), spec.name) for spec in fields(Plan) if spec.metadata["runtime"]}
    # The server decides who judges and when the run stops; what it may ask for is checked against `sent`.
    others = {"evaluate": "none", "eval_clients": None, "target": None, "patience": None}
    with importing_only([*allowed, task.partition(":")[0]]):
        plan = make_plan({**values, **own, **others, "device": device, "task": tasks[task]})
        return PlanOnDevice(sent, served(resolve_on_device(plan)))


def _listed(tasks: Mapping[str, Task]) -> str:
    return ", ".join(f"'{name}'" for name in tasks)
