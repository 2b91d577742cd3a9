"""One run in its own process: `python -m fedavg.campaign.one ORDER`.

It starts or continues the order's run, and stops it at the target or at the cap, even if the cap is lowered meanwhile.
After a stop, a signal or the death of the process that gave the order, the run can be resumed.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from math import log10
from pathlib import Path
from shutil import rmtree
from typing import Final

import torch

from fedavg import seeds
from fedavg.campaign.orders import Order, read_order, run_directory
from fedavg.campaign.racing import lost
from fedavg.campaign.records import CAP, DIVERGED, TARGET, is_locked
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.errors import Diverged, FedAvgError
from fedavg.metrics import report
from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir
from fedavg.runlog.summary import curve
from fedavg.runner import resume, run
from fedavg.server import Event, Round, Watcher, event_row
from fedavg.setup import resolve_data, resolve_task
from fedavg.types import Examples, FederatedData

#: Exit codes besides 0: an error, reported on stderr; another process has the run; a signal.
FAILED: Final = 2
BUSY: Final = 3
SIGNALLED: Final = 130
#: The loss on a sample of the training set is noted at this many rounds of each decade.
SAMPLES_PER_DECADE: Final = 10


class Stop(Exception):
    """The run is to end here; the message says why."""

    def __init__(self, stopped: str, reason: str) -> None:
        super().__init__(reason)
        self.stopped = stopped


class Overseer:
    """Watches a run according to its order, and ends it when there is reason to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = 0
        self._parent = os.getppid()
        self._values: list[float] = []
        self.last = 0
        self.order = self._current()

    def _current(self) -> Order:
        changed_at = self._path.stat().st_mtime_ns
        if changed_at != self._read_at:
            self.order, self._read_at = read_order(self._path), changed_at
        return self.order

    def check(self, round: int, values: Sequence[float]) -> None:
        """Raise Stop if the run is to end after this round, KeyboardInterrupt if nobody waits for it any more.

        `values`: what was evaluated since the last check.
        """
        self.last, order = round, self._current()
        self._values.extend(values)
        if order.target is not None and max(values, default=0.0) >= order.target:
            raise Stop(TARGET, f"reached {order.target:g} in round {round}")
        if order.thrifty and lost(self._values):
            raise Stop(DIVERGED, f"fell from {max(self._values):g} to {self._values[-1]:g} by round {round}")
        if round >= order.cap:
            raise Stop(order.stopped, f"stopped after round {round}: {order.reason}")
        if os.getppid() != self._parent:
            raise KeyboardInterrupt

    def __call__(self, event: Event) -> None:
        if isinstance(event, Round):
            self.check(event.round, curve([event_row(event)], self.order.metric)[1])


class TrainingSample:
    """Notes the loss of the shared model on a fixed sample of the training set, at ever longer intervals.

    A run's own training loss is measured by clients during their last local epoch: with a large E it says how well
    clients fit their own data, not how good the shared model is (Figures 3, 6 and 8).
    """

    def __init__(self, plan: Plan, size: int, path: Path) -> None:
        self._trainer = Trainer(resolve_task(plan), plan.seed)
        self._examples = sample_of(resolve_data(plan), size, plan.seed)
        self._path = path

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Round) or not sample_due(event.round):
            return
        self._trainer.load(event.state.weights)
        loss = report(self._trainer.task.judged_by, self._trainer.evaluate(self._examples))["loss"]
        with self._path.open("a") as file:
            file.write(json.dumps([event.round, loss]) + "\n")


def sample_due(round: int) -> bool:
    """Every round at first, then about SAMPLES_PER_DECADE in each decade."""
    return round == 1 or int(SAMPLES_PER_DECADE * log10(round)) > int(SAMPLES_PER_DECADE * log10(round - 1))


def sample_of(data: FederatedData, size: int, seed: int) -> Examples:
    """About `size` training examples, from each client in proportion to its n_k."""
    share = min(size / int(data.sizes.sum()), 1.0)
    parts = []
    for k, n in enumerate(data.sizes):
        draw = seeds.rng(seed, seeds.NONE, k, "training sample")
        chosen = torch.from_numpy(draw.permutation(int(n))[: int(share * n + draw.random())])
        examples = data.client(k)
        parts.append((examples.x.index_select(0, chosen), examples.y.index_select(0, chosen)))
    x, y = (torch.cat(list(tensors)) for tensors in zip(*parts, strict=True))
    return Examples(x, y)


def follow(path: Path) -> None:
    """Raise Stop when the order is fulfilled."""
    overseer = Overseer(path)
    directory = RunDir(run_directory(path))
    begun = (directory.path / "run.json").exists()
    if begun:
        rows = directory.rows()
        overseer.check(len(rows), curve(rows, overseer.order.metric)[1])
    elif directory.path.exists():  # killed before its first round started
        rmtree(directory.path)
    watchers: list[Watcher] = [*_sampling(overseer.order, directory), overseer]

    def watch(event: Event) -> None:
        for watcher in watchers:
            watcher(event)

    if begun:
        result = resume(directory.path, watch, workers=1, data_dir=overseer.order.plan.get("data_dir"))
    else:
        result = run(overseer.order.to_plan(), directory.path, watch)
    reached = result.summary.status == "target reached"
    raise Stop(TARGET if reached else CAP, f"{result.summary.status} after {result.summary.rounds} rounds")


def _sampling(order: Order, directory: RunDir) -> list[TrainingSample]:
    if not order.train_sample:
        return []
    return [TrainingSample(order.to_plan(), order.train_sample, directory.path / "sample.jsonl")]


def main(path: Path) -> int:
    with one_thread():  # other runs have the other cores
        return _main(path)


def _main(path: Path) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))  # workers just end
    directory = RunDir(run_directory(path))
    try:
        follow(path)
    except (Stop, Diverged) as end:
        stopped = end.stopped if isinstance(end, Stop) else DIVERGED
        note = {"round": len(directory.rows()), "stopped": stopped, "reason": str(end)}
        directory.write_json("stop.json", note)
        return 0
    except KeyboardInterrupt:
        return SIGNALLED
    except FedAvgError as error:
        if is_locked(directory.path):
            return BUSY
        print(error, file=sys.stderr)
        return FAILED
    raise AssertionError("follow always ends by an exception")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
