"""Personalisation by fine-tuning: each client trains the shared model a little further on its own data, for itself.

Each client's examples are split: on the one part the model is fine-tuned, on the other, held out, the shared and the
fine-tuned model are judged. Where the run itself held those examples back (the plan's `holdout`), neither has
seen them; otherwise the shared model was trained on them too, and both are judged too kindly: `seen` says so.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from fedavg import seeds
from fedavg.algorithms import make_algorithm
from fedavg.client import Client
from fedavg.codecs import make_codec
from fedavg.data import HeldOut
from fedavg.engine.threads import one_thread
from fedavg.engine.trainer import Trainer
from fedavg.errors import DataError, Diverged, FedAvgError, FleetError, RunDirError
from fedavg.metrics import report
from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir
from fedavg.setup import Setup, resolve_data, resolve_task
from fedavg.types import Work

PERCENTILES: Final = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class FineTuning:
    """How a client trains for itself: epochs, batch size, learning rate; `share`: what is held out if the run held
    nothing back."""

    epochs: int
    batch: float
    lr: float
    share: float


@dataclass(frozen=True)
class Judged:
    """A client's metrics on its held-out examples: of the shared model, and of its own."""

    client: int
    examples: int
    held_out: int
    shared: dict[str, float]
    own: dict[str, float]


@dataclass(frozen=True)
class Personalised:
    """What fine-tuning gave each client. `metric` is the one that 'better' means; `skipped` had nothing to judge on."""

    round: int
    settings: FineTuning
    seen: bool
    metric: str
    clients: tuple[Judged, ...]
    skipped: int

    @property
    def gains(self) -> np.ndarray:
        """By how much the own model is better than the shared one, for each client."""
        sign = 1 if self.metric == "accuracy" else -1
        return np.array([sign * (c.own[self.metric] - c.shared[self.metric]) for c in self.clients])

    def to_dict(self) -> dict[str, Any]:
        spreads = {
            name: {
                "shared": spread([c.shared[name] for c in self.clients]),
                "own": spread([c.own[name] for c in self.clients]),
            }
            for name in self.clients[0].shared
        }
        better = {word: float(np.mean(test(self.gains))) for word, test in _COMPARISONS.items()}
        return {
            "round": self.round,
            "settings": asdict(self.settings),
            "held_out_seen_in_training": self.seen,
            "metric": self.metric,
            "clients": len(self.clients),
            "skipped": self.skipped,
            "metrics": spreads,
            "gain": spread(self.gains),
            "share_of_clients": better,
            "by_client": [asdict(client) for client in self.clients],
        }


_COMPARISONS: Final[dict[str, Callable[[np.ndarray], np.ndarray]]] = {
    "better": lambda gains: gains > 0,
    "same": lambda gains: gains == 0,
    "worse": lambda gains: gains < 0,
}


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The mean over clients, each counting alike, and the percentiles."""
    points = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}
    return {"mean": float(np.mean(values)), **points}


def personalise(
    run_dir: str | Path,
    *,
    epochs: int = 5,
    lr: float | None = None,
    batch: float | None = None,
    share: float = 0.2,
    **changes: Any,
) -> Personalised:
    """Fine-tune the last model of a run for every client, and judge it there. What is not given is as the run had it.

    A run that was started from Python with its own task or data needs them again, as `resume` does. Runtime
    options (workers, data_dir) may be changed. The result does not depend on the number of workers.
    """
    directory = RunDir(Path(run_dir))
    plan = directory.plan(**changes)
    start = directory.newest(plan.digest)
    if start is None:
        raise RunDirError(f"{directory.path} has no checkpoint of its plan; expected one: run it first")
    work = plan.work(max(start.round, 1))
    settings = FineTuning(epochs, batch or work.batch, lr or work.lr, plan.holdout or share)
    held_out = _held_out(plan, share)
    with one_thread():
        clients = _judge_all(plan, held_out, start.state.weights, settings)
    metric = next(name for name in ("accuracy", "loss", *clients[0].shared) if name in clients[0].shared)
    return Personalised(start.round, settings, not plan.holdout, metric, clients, len(held_out) - len(clients))


def _held_out(plan: Plan, share: float) -> HeldOut:
    data = resolve_data(plan)
    return data if isinstance(data, HeldOut) else HeldOut(data, share, plan.seed)


def _judge_all(plan: Plan, data: HeldOut, weights: Tensor, settings: FineTuning) -> tuple[Judged, ...]:
    able = [int(k) for k in np.flatnonzero(data.held_sizes)]
    if not able:
        raise DataError(f"{data.name}: no client has examples to hold out; expected some: use a larger share")
    setup = Setup(plan, resolve_task(plan), data, make_algorithm("fedavg"), make_codec("float32"), ())
    trainer = setup.new_trainer()

    def judge(k: int) -> Judged:
        return _judge(trainer, data, k, weights, settings, plan)

    return tuple(spread_over(plan.workers, able, judge))


def _judge(trainer: Trainer, data: HeldOut, k: int, weights: Tensor, settings: FineTuning, plan: Plan) -> Judged:
    held = data.held(k)
    client = Client(k, data.client(k), trainer, plan.seed, seeds.NONE, {}, plan.drop_last)
    client.load(weights)
    shared = report(trainer.task.judged_by, trainer.evaluate(held))
    with trainer.seeded(seeds.torch_seed(plan.seed, seeds.NONE, k, "module")):
        client.epochs(Work(seeds.NONE, settings.epochs, settings.batch, settings.lr))
    if not all(isfinite(float(end)) for end in client.weights.aminmax()):
        raise Diverged(f"client {k}: fine-tuning diverged at lr={settings.lr:g}; use a smaller lr")
    return Judged(k, client.n, len(held), shared, report(trainer.task.judged_by, trainer.evaluate(held)))


def spread_over(workers: int, clients: Sequence[int], do: Callable[[int], Judged]) -> list[Judged]:
    """The results in the order of the clients, worked out by forked processes; here, where there is no fork."""
    if workers == 1 or "fork" not in get_all_start_methods():
        return [do(k) for k in clients]
    context = get_context("fork")
    parts = [clients[first::workers] for first in range(min(workers, len(clients)))]
    pipes = []
    for part in parts:
        here, there = context.Pipe(duplex=False)
        context.Process(target=_work, args=(there, part, do), daemon=True).start()
        there.close()
        pipes.append(here)
    return sorted((one for pipe in pipes for one in _receive(pipe)), key=lambda judged: judged.client)


def _work(pipe: Connection, clients: Sequence[int], do: Callable[[int], Judged]) -> None:
    try:
        pipe.send([do(k) for k in clients])
    except FedAvgError as error:
        pipe.send(error)
    os._exit(0)


def _receive(pipe: Connection) -> list[Judged]:
    try:
        reply = pipe.recv()
    except EOFError:
        raise FleetError("a process that fine-tuned clients died; expected its results: use fewer workers") from None
    if isinstance(reply, FedAvgError):
        raise reply
    judged: list[Judged] = reply
    return judged
