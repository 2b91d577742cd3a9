"""The clock of a world without training: who would be asked, who would report, and when. For a million clients a
simulated day takes a fraction of a minute. Used for pictures of a day and to measure the cost of the clock itself."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedavg import seeds
from fedavg.errors import PlanError
from fedavg.samplers import Pool, Sampler, make_sampler
from fedavg.samplers.memory import CohortSeen, Memory, learned
from fedavg.world import Closing, World, make_closing, make_world
from fedavg.world.clock import Clock, Errand, Outcome
from fedavg.world.report import ClockRow, row_of_round


@dataclass(frozen=True)
class Scene:
    """What the clock needs to know: the world, how clients are drawn, and a client's work in a round.

    A round needs `wanted` reports. Every client trains on `examples` examples over all its epochs, fetches `bytes_down`
    and sends `bytes_up`.
    """

    world: str | World
    closing: str | Closing = "all"
    sampling: str | Sampler = "fixed"
    clients: int = 1000
    wanted: int = 20
    examples: float = 600.0
    bytes_down: int = 800_000
    bytes_up: int = 800_000
    seed: int = 0


@dataclass(frozen=True)
class Tick:
    """One attempt at a round: whom it asked, and how that went."""

    errand: Errand
    outcome: Outcome
    row: ClockRow
    memory: Memory


def ticks(scene: Scene, until_s: float) -> Iterator[Tick]:
    """Attempts at rounds, one after another, until the clock reaches a time."""
    sampler, closing = make_sampler(scene.sampling), make_closing(scene.closing)
    if sampler.needs_losses:
        raise PlanError(f"sampling: got '{sampler}', which looks at losses, and nobody trains here; expected another")
    clock = Clock(make_world(scene.world), closing, scene.clients, scene.seed)
    memory, able, ones = (
        Memory.of_nothing(scene.clients),
        np.ones(scene.clients, bool),
        np.ones(scene.clients, np.int64),
    )
    round, attempt = 1, 0
    while clock.now < until_s:
        began = clock.now
        there = clock.gather(able, scene.wanted)
        present = np.flatnonzero(there)
        rng = seeds.rng(scene.seed, round, seeds.NONE, f"cohort {attempt}" if attempt else "cohort")
        size = min(closing.asked(scene.wanted), len(present))
        pool = Pool(round, attempt, size, present, ones[present], rng, _nobody, memory)
        asked = np.asarray(sampler.draw(pool), np.int64)
        errand = _errand(scene, round, attempt, asked)
        outcome = clock.run(errand, scene.wanted)
        row = row_of_round(outcome, errand, clock.groups, there, outcome.opened - began)
        unknown = np.full(len(asked), np.nan)
        memory = learned(memory, CohortSeen(round, there, asked, outcome.closed.reported, unknown, outcome.seconds))
        yield Tick(errand, outcome, row, memory)
        round, attempt = (round, attempt + 1) if outcome.closed.reason else (round + 1, 0)


def _errand(scene: Scene, round: int, attempt: int, asked: np.ndarray) -> Errand:
    amounts = (np.full(len(asked), float(each)) for each in (scene.examples, scene.bytes_down, scene.bytes_up))
    return Errand(round, attempt, asked, *amounts)


def _nobody(clients: object) -> np.ndarray:
    raise AssertionError("refused before")
