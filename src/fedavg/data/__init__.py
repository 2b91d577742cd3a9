"""Data by client: the registry of data sets and the one function that loads them.

Adding a data set is one file with a `Dataset` and one line in `DATASETS`.
"""

from pathlib import Path
from typing import Any

from fedavg.data.cifar10 import CIFAR10
from fedavg.data.dataset import Dataset, Request
from fedavg.data.federated import ArrayData, pooled
from fedavg.data.holdout import HeldOut
from fedavg.data.location import data_directory
from fedavg.data.mnist import MNIST
from fedavg.data.partition import PARTITIONS, Partition, parse_partition
from fedavg.data.posts import POSTS
from fedavg.data.shakespeare import SHAKESPEARE
from fedavg.data.synthetic_posts import SYNTHETIC_POSTS
from fedavg.errors import PlanError
from fedavg.specs import parse_spec, usage, written
from fedavg.types import FederatedData

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset for dataset in (MNIST, CIFAR10, SHAKESPEARE, POSTS, SYNTHETIC_POSTS)
}

__all__ = [
    "DATASETS",
    "ArrayData",
    "Dataset",
    "HeldOut",
    "Partition",
    "canonical",
    "check",
    "is_named",
    "load",
    "parse_partition",
    "pooled",
]


def load(
    name: str,
    partition: str | Partition | None = None,
    clients: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
) -> FederatedData:
    """A data set, split over clients. What is not given is the data set's default.

    `name` may carry settings, as in 'mnist:pixels=centred'.

    >>> len(load("mnist", "shards:2", clients=50))
    50
    """
    wanted = check(name, partition, clients)
    dataset, settings = read_name(name)
    return dataset.load(Request(wanted, clients, seed, data_directory(data_dir), settings))


def check(name: str, partition: str | Partition | None, clients: int | None) -> Partition:
    """Refuses, without reading any data, what `load` could never do; gives back the partition."""
    dataset = dataset_named(name)
    wanted = parse_partition(partition or dataset.default_partition)
    if not _can_split(dataset, wanted):
        forms = ", ".join(usage({kind: PARTITIONS[kind] for kind in dataset.partitions}))
        raise PlanError(f"data set {name} cannot be split by {wanted}. Use one of: {forms}.")
    if clients is not None and clients < 1:
        raise PlanError(f"clients = {clients}: expected 1 or more.")
    return wanted


def _can_split(dataset: Dataset, wanted: Partition) -> bool:
    """One of its own kinds; a user's own partition deals out any data with labels, which natural data lacks."""
    if type(wanted) in PARTITIONS.values():
        return any(type(wanted) is PARTITIONS[kind] for kind in dataset.partitions)
    return any(not PARTITIONS[kind].by_key for kind in dataset.partitions)


def is_named(text: str) -> bool:
    """Whether a text names a data set of the registry, with or without settings; else it may name installed code."""
    return text.partition(":")[0] in DATASETS


def dataset_named(text: str) -> Dataset:
    return read_name(text)[0]


def read_name(text: str) -> tuple[Dataset, Any]:
    """The data set that a text names, and its settings.

    >>> read_name("mnist:pixels=centred")[1]
    Settings(pixels='centred')
    """
    settings: Any = parse_spec(text, {name: dataset.settings for name, dataset in DATASETS.items()}, "data")
    return DATASETS[text.partition(":")[0]], settings


def canonical(text: str) -> str:
    """The one way to write a data set's name: settings in their order, without those at their defaults.

    >>> canonical("mnist:pixels=unit"), canonical("mnist:pixels=centred")
    ('mnist', 'mnist:pixels=centred')
    """
    dataset, settings = read_name(text)
    return written(dataset.name, settings)
