"""`fedavg study robust`: ByzFL's published heat map (González et al. 2025), cell by cell.

10 honest clients and f liars; a CNN on MNIST; 800 steps of distributed SGD with batches of 25, rate 0.1, clients'
momentum 0.9 and weight decay 1e-4. The server clips to 2, mixes nearest neighbours, and takes the trimmed mean or the
geometric median. A cell is the better of the two rules under the worst of three attacks, each by its highest test
accuracy. gamma is the share of the data that is dealt at random; the rest is sorted by label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from fedavg.algorithms import Algorithm, PlanOptions
from fedavg.algorithms.settings import require, require_plain_sgd
from fedavg.campaign.records import Record
from fedavg.data.partition import Partition, Parts
from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.study.cells import FoundCell, PublishedCell, best, markdown, shown, written
from fedavg.study.figures import Grid, heat_maps
from fedavg.tasks.task import Task, as_float
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client

HONEST: Final = 10
#: ByzFL keeps a fifth of the training set for validation; here the liars hold it, and they do not train.
TRAINED_ON: Final = 0.8
GAMMAS: Final = (1.0, 0.66, 0.33, 0.0)
#: The published heat map: gamma -> f = 1, 2, 3, 4.
PUBLISHED: Final = {
    1.0: (0.98, 0.98, 0.98, 0.98),
    0.66: (0.98, 0.97, 0.97, 0.97),
    0.33: (0.98, 0.97, 0.94, 0.94),
    0.0: (0.87, 0.61, 0.26, 0.27),
}
#: Their sign flip reverses the honest mean.
ATTACKS: Final = ("ipm:1.0", "optipm", "optalie")
#: The most informative cells come first: where honest clients differ and defences begin to fail, then the corners.
ORDER: Final = ((0.0, 1), (0.33, 3), (1.0, 4), (0.0, 3), (0.33, 1), (0.66, 4))


def module() -> nn.Module:
    """ByzFL's cnn_mnist: 5x5 convolutions of 20 and 50 filters without padding, 500 units: 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500), nn.ReLU(),
        nn.Linear(500, 10),
    )  # fmt: skip


def standardised(x: Tensor) -> Tensor:
    return ((as_float(x) - 0.1307) / 0.3081).unsqueeze(1)


CNN = Task("byzfl-cnn", module, prepare=standardised, eval_batch=200)


@dataclass(frozen=True)
class DSGD(Algorithm):
    """Distributed SGD with momentum on the clients: Karimireddy, He and Jaggi 2021, "Learning from History".

    client k:  m_k = momentum m_k + (1 - momentum) ∇l(w; b), sends m_k;   server:  w -= lr (mean_k m_k + weight_decay w)

    >>> str(DSGD(0.9, 0.0001))
    'fedavg.study.robust:DSGD:0.9:0.0001'
    """

    name = "dsgd"
    keeps_state = True
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require(self, "momentum", low=0, high=0.9999)
        require(self, "weight_decay", low=0)

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        client.load(weights)
        _, loss = client.step(work.round, work.batch, 1.0)
        gradient = weights - client.weights  # a step of rate 1
        kept = client.state.get("m", torch.zeros_like(weights))
        client.state["m"] = kept.mul(self.momentum).add_(gradient, alpha=1 - self.momentum)
        return Update(client.state["m"], weight=client.n, metrics={"train_loss": loss})

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        w = state.weights.double()
        return State((w - work.lr * (total.mean + self.weight_decay * w)).float())

    def check(self, plan: PlanOptions) -> None:
        if plan.schedule("E").values != {1}:
            raise PlanError(f"algorithm dsgd: got E={plan.E}; expected E=1: one batch of size B is one round")
        require_plain_sgd(plan, self.name, "momentum and weight decay are its own settings")


@dataclass(frozen=True)
class Similar(Partition):
    """Ten clients share four fifths of the examples: a share gamma at random, the rest sorted by label. Further clients
    hold what is left over.

    >>> str(Similar(0.66))
    'fedavg.study.robust:Similar:0.66'
    """

    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise PlanError(f"partition similar: gamma is {self.gamma:g}; expected 0 to 1")

    def deal(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
        if clients < HONEST:
            raise PlanError(f"partition similar: got {clients} clients; expected {HONEST} honest ones, and liars")
        order = rng.permutation(len(labels))
        used = int(TRAINED_ON * len(labels)) if clients > HONEST else len(labels)
        alike = int(used * self.gamma)
        rest = np.sort(order[alike:used])
        by_label = np.array_split(rest[np.argsort(labels[rest], kind="stable")], HONEST)
        shares = [np.concatenate(pair) for pair in zip(np.array_split(order[:alike], HONEST), by_label, strict=True)]
        return [*shares, *np.array_split(order[used:], clients - HONEST)] if clients > HONEST else shares


def reducers(faults: int) -> tuple[str, ...]:
    return "geomedian:0.1:3", f"trimmed:{faults}"


def plan_of(gamma: float, faults: int, reducer: str, attack: str, seed: int = 0) -> Plan:
    """One run of a cell."""
    return Plan(
        task="fedavg.study.robust:CNN",
        data="mnist",
        partition=f"fedavg.study.robust:Similar:{gamma}",
        clients=HONEST + faults,
        algorithm="fedavg.study.robust:DSGD:0.9:0.0001",
        C=1.0,
        E=1,
        B=25,
        lr=0.1,
        rounds=800,
        eval_every=50,
        reducer=reducer,
        pre=("clip:2.0", f"nnm:{faults}"),
        attack=attack,
        attackers=tuple(range(HONEST, HONEST + faults)),
        seed=seed,
    )


def cell_of(gamma: float, faults: int, seed: int = 0) -> PublishedCell:
    published = PUBLISHED[gamma][faults - 1]
    plans = tuple(plan_of(gamma, faults, rule, attack, seed) for rule in reducers(faults) for attack in ATTACKS)
    return PublishedCell(
        name=f"gamma {gamma:g}, f {faults}",
        command=f"fedavg study robust --gamma {gamma:g} --faults {faults}",
        plans=plans,
        published=published,
        within=0.02 if published > 0.9 else 0.1,
        value=better_of_the_worst,
    )


def better_of_the_worst(records: Sequence[Record]) -> float:
    """The best rule's accuracy under its worst attack, by each run's highest accuracy; three attacks for each rule."""
    accuracies = [best(record) for record in records]
    return max(min(accuracies[: len(ATTACKS)]), min(accuracies[len(ATTACKS) :]))


def cells(gammas: Sequence[float] = GAMMAS, faults: Sequence[int] = (1, 2, 3, 4), seed: int = 0) -> list[PublishedCell]:
    """The requested cells, the most informative first."""
    every = [*ORDER, *((gamma, f) for gamma in GAMMAS for f in (1, 2, 3, 4) if (gamma, f) not in ORDER)]
    return [cell_of(gamma, f, seed) for gamma, f in every if gamma in gammas and f in faults]


def write(results: Sequence[FoundCell], out: Path) -> list[Path]:
    """robust.md, robust.json and the heat maps, published and ours."""
    by_name = {result.cell.name: result for result in results}
    rows = {f"{gamma:g}": [shown(by_name[cell_of(gamma, f).name], 2) for f in (1, 2, 3, 4)] for gamma in GAMMAS}
    text = "\n\n".join([
        "# ByzFL's heat map",
        "Test accuracy under the worst of three attacks by the better of two rules; ours, and in brackets the "
        "published figure. Written by `fedavg study robust`.",
        markdown("gamma", [f"f = {f}" for f in (1, 2, 3, 4)], rows),
        "![The published heat map beside ours](figures/robust.png)",
    ])  # fmt: skip
    grids: dict[str, Grid] = {
        "published": {f"{gamma:g}": {f"f={f}": PUBLISHED[gamma][f - 1] for f in (1, 2, 3, 4)} for gamma in GAMMAS},
        "ours": {
            f"{gamma:g}": {f"f={f}": by_name[cell_of(gamma, f).name].ours for f in (1, 2, 3, 4)} for gamma in GAMMAS
        },
    }
    return [*written(results, text, out / "robust"), *heat_maps(grids, out / "figures" / "robust")]
