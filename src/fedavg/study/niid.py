"""`fedavg study niid`: NIID-Bench (Li et al. 2022) as in Flower's reproduction, cell by cell.

10 clients, all in every round, 50 rounds of E = 10 local epochs with batches of 64, rate 0.01, momentum 0.9, weight
decay 1e-5, mu = 0.01; a CNN with 6 and 16 filters; pixels from 0 to 1; images of CIFAR-10 are padded by
reflection by 4 pixels, cropped at random and mirrored at random. These are the settings of `baselines/niid_bench`
(conf/*_base.yaml, models.py, dataset_preparation.py). The figure is the accuracy after the last round. Two things
differ. Flower tunes mu over 0.001, 0.01, 0.1 and 1; here it is the default of its settings. And its SCAFFOLD applies
the correction outside momentum, to a step of rate 0.01, and its control variates are the sum that momentum accumulates
(about ten gradients); here the correction is part of the gradient, and control variates are gradients.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedavg.campaign.records import Record
from fedavg.plan import Plan
from fedavg.study.cells import FoundCell, PublishedCell, last, markdown, shown, written
from fedavg.study.figures import bars
from fedavg.tasks.task import Task, as_float

_DIRICHLET: Final = "dirichlet:0.5:by=label:capped=true"
#: Data and partition -> algorithm -> the published accuracy in percent. FedDyn is our addition.
PUBLISHED: Final = {
    ("mnist", _DIRICHLET): {"fedavg": 98.89, "scaffold": 99.07, "fedprox": 99.02, "fednova": 98.03},
    ("mnist", "labels:2"): {"fedavg": 96.86, "scaffold": 96.92, "fedprox": 96.85, "fednova": 96.65},
    ("cifar10", "iid"): {"fedavg": 71.32, "scaffold": 71.66, "fedprox": 71.26, "fednova": 70.69},
    ("cifar10", _DIRICHLET): {"fedavg": 62.47, "scaffold": 68.08, "fedprox": 65.63, "fednova": 63.89},
}
ALGORITHMS: Final = {
    "fedavg": "fedavg",
    "scaffold": "scaffold",
    "fedprox": "fedprox:0.01",
    "fednova": "fednova",
    "feddyn": "feddyn:0.01",
}
#: Within this many points of the published accuracy.
WITHIN: Final = 1.0


def _lenet(channels: int, side: int) -> nn.Module:
    """Two 5x5 convolutions without padding, of 6 and 16 filters, each with pooling; 120 and 84 units."""
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


def _grey() -> nn.Module:
    """For 28 x 28 grey images: 44,426 parameters."""
    return _lenet(1, 4)


def _coloured() -> nn.Module:
    """For 32 x 32 coloured images: 62,006 parameters."""
    return _lenet(3, 5)


def _grey_image(x: Tensor) -> Tensor:
    return as_float(x).unsqueeze(1)


def cropped(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Training images (n, 3, h, w) as floats: random crops after padding by reflection by 4 pixels, mirrored or not."""
    n, _, height, width = x.shape
    top, left, mirrored = (torch.from_numpy(rng.integers(0, end, n)).to(x.device) for end in (9, 9, 2))
    padded = F.pad(as_float(x), (4, 4, 4, 4), mode="reflect")
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (n, 3, 9, 9, h, w)
    image = crops[torch.arange(n, device=x.device), :, top, left]
    return torch.where(mirrored.bool().view(n, 1, 1, 1), image.flip(3), image)


MNIST = Task("niid-mnist", _grey, prepare=_grey_image, eval_batch=500)
CIFAR = Task("niid-cifar", _coloured, prepare=as_float, augment=cropped, eval_batch=500)
_TASKS: Final = {"mnist": "fedavg.study.niid:MNIST", "cifar10": "fedavg.study.niid:CIFAR"}


def plan_of(data: str, partition: str, algorithm: str, seed: int = 0) -> Plan:
    return Plan(
        task=_TASKS[data],
        data=data,
        partition=partition,
        clients=10,
        algorithm=ALGORITHMS[algorithm],
        C=1.0,
        E=10,
        B=64,
        lr=0.01,
        optimizer="sgd:momentum=0.9:weight_decay=1e-05",
        rounds=50,
        seed=seed,
    )


def cell_of(data: str, partition: str, algorithm: str, seed: int = 0) -> PublishedCell:
    return PublishedCell(
        name=f"{data} {partition} {algorithm}",
        command=f"fedavg study niid --data {data} --partition {partition} --algorithm {algorithm}",
        plans=(plan_of(data, partition, algorithm, seed),),
        published=PUBLISHED[data, partition].get(algorithm, float("nan")),
        within=WITHIN,
        value=_percent,
    )


def _percent(records: Sequence[Record]) -> float:
    (record,) = records
    return round(100 * last(record), 2)


def cells(
    data: Sequence[str] = (), partitions: Sequence[str] = (), algorithms: Sequence[str] = (), seed: int = 0
) -> list[PublishedCell]:
    """The requested cells, MNIST first; all of them if none are named."""
    return [
        cell_of(name, partition, algorithm, seed)
        for name, partition in PUBLISHED
        for algorithm in ALGORITHMS
        if (not data or name in data)
        and (not partitions or partition in partitions)
        and (not algorithms or algorithm in algorithms)
    ]


def write(results: Sequence[FoundCell], out: Path) -> list[Path]:
    """niid.md, niid.json and the bars, published and ours."""
    by_name = {result.cell.name: result for result in results}
    rows = {
        f"{data} {partition}": [shown(by_name[cell_of(data, partition, name).name], 2) for name in ALGORITHMS]
        for data, partition in PUBLISHED
    }
    text = "\n\n".join([
        "# NIID-Bench",
        "Test accuracy in percent after 50 rounds; ours, and in brackets what Flower's reproduction has. Written by "
        "`fedavg study niid`.",
        markdown("data", list(ALGORITHMS), rows),
        "![Bars by algorithm, published beside ours](figures/niid.png)",
    ])  # fmt: skip
    groups = {
        f"{data} {partition}": {
            name: (published.get(name), by_name[cell_of(data, partition, name).name].ours) for name in ALGORITHMS
        }
        for (data, partition), published in PUBLISHED.items()
    }
    return [*written(results, text, out / "niid"), *bars(groups, ("published", "ours"), out / "figures" / "niid")]
