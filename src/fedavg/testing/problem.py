"""The small problem that parts are tried on, and the laws that hold for every run."""

from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedavg.data import ArrayData
from fedavg.engine.model import model_sha256
from fedavg.errors import FedAvgError
from fedavg.plan import Plan
from fedavg.runner import resume, run
from fedavg.server import Event, Round, Start, train
from fedavg.specs import Pluggable, make, text_of
from fedavg.tasks import Task
from fedavg.types import Examples


class CheckFailed(AssertionError):
    """A part does not do what is expected of its kind; the message says what was got, expected, and what to do."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckFailed(message)


def small_module() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def small_task() -> Task:
    return Task("check", small_module)


def small_data() -> ArrayData:
    """Points around three centres in eight dimensions: five clients that lack one class each, and one with nothing."""
    x, y = _points(90, seed=1)
    parts = [np.flatnonzero((y.numpy() != k % 3) & (np.arange(90) % 5 == k)) for k in range(5)]
    return ArrayData("check", x, y, [*parts, np.arange(0)], Examples(*_points(60, seed=2)))


def _points(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = 2 * np.eye(3, 8)[y] + 0.7 * rng.standard_normal((n, 8))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def small_plan(**options: Any) -> Plan:
    """A plan for the problem; whatever is given stands in place of what it has."""
    values = {
        "task": small_task(), "data": small_data(), "C": 0.5, "E": 2, "B": 4, "lr": 0.1, "rounds": 6, "workers": 2,
        "checkpoint_s": 0,
    }  # fmt: skip
    return Plan(**{**values, **options})


def last(plan: Plan, what: str) -> Round:
    """The last round of a run; an error in it is reported as the part's."""
    try:
        events: list[Event] = list(train(plan))
    except FedAvgError as error:
        raise CheckFailed(f"{what}: a run with it failed: {error}") from error
    require(isinstance(events[-1], Round), f"{what}: a run with it had no round; expected {plan.rounds}")
    found = events[-1]
    assert isinstance(found, Round)
    return found


def check_learns(plan: Plan, what: str) -> Round:
    """The loss on the test set is well below log 3, which is what guessing among three classes has."""
    end = last(plan, what)
    loss = (end.test or {}).get("loss", float("nan"))
    require(
        loss < 0.9,
        f"{what}: after {end.round} rounds the test loss is {loss:.3g}; expected less than 0.9 (guessing has 1.10). "
        "Give the check options with which it learns, as in check(..., rounds=30, lr=0.5)",
    )
    return end


def check_repeats(plan: Plan, what: str, end: Round | None = None) -> None:
    """The same model for any number of workers, twice, and after a stop. `end`: of a run of this plan, if there was."""
    check_resumes(plan, what, check_same_bits(plan, what, end))


def check_same_bits(plan: Plan, what: str, end: Round | None = None) -> Tensor:
    """The same weights for any number of workers, twice."""
    missing, found = [1, 1, 2], []
    if end and plan.workers in missing:
        missing.remove(plan.workers)
        found.append((plan.workers, end.state.weights))
    found += [(workers, last(replace(plan, workers=workers), what).state.weights) for workers in missing]
    first, second, by_two = (weights for _, weights in sorted(found, key=itemgetter(0)))
    require(
        torch.equal(first, second),
        f"{what}: the same plan gave two models. Draw only from the generators that are given (client.rng, rng), "
        "never from random, numpy.random or torch by themselves, and keep nothing on the object between calls",
    )
    require(
        torch.equal(first, by_two),
        f"{what}: one worker and two gave different models. What a client does must depend only on what it is given: "
        "each worker has its own copy of the object, so nothing kept on it reaches the others",
    )
    return first


def check_resumes(plan: Plan, what: str, whole: Tensor) -> None:
    """A run that is stopped and resumed gives the model of the uninterrupted one, whose weights are `whole`."""
    middle = max(plan.rounds // 2, 1)

    def stop(event: Event) -> None:
        if isinstance(event, Round) and event.round == middle < plan.rounds:
            raise KeyboardInterrupt

    with TemporaryDirectory(prefix="fedavg-check-") as folder:
        with suppress(KeyboardInterrupt):
            run(plan, Path(folder) / "run", stop)
        given = {name: getattr(plan, name) for name, _ in plan.objects()}
        got = resume(Path(folder) / "run", **given).summary.model_sha256
    require(
        got == model_sha256(whole),
        f"{what}: a run that was stopped after round {middle} and resumed gave another model than the uninterrupted "
        "one. What must outlive a round belongs in the server's state or in client.state, not on the object",
    )


def check_text(part: Pluggable, base: type[Pluggable], what: str) -> None:
    """If it has a text, that reads back to an equal part."""
    text = text_of(part)
    require(
        text is None or make(text, base) == part,
        f"{what}: its text '{text}' reads back to another object. Make the class a frozen dataclass",
    )


def starts(plan: Plan, what: str) -> Start:
    """What a run begins with."""
    try:
        event = next(iter(train(plan)))
    except FedAvgError as error:
        raise CheckFailed(f"{what}: a run with it cannot be started: {error}") from error
    assert isinstance(event, Start)
    return event
