"""Data by client: the registry of data sets and the one function that loads them.

Adding a data set is one file with a `Dataset` and one line in `DATASETS`.
"""

from pathlib import Path

from fedavg.data.cifar10 import CIFAR10
from fedavg.data.dataset import Dataset, Request
from fedavg.data.federated import ArrayData, pooled
from fedavg.data.holdout import HeldOut
from fedavg.data.location import data_directory
from fedavg.data.mnist import MNIST
from fedavg.data.partition import PARTITIONS, Natural, Partition, parse_partition
from fedavg.data.posts import POSTS
from fedavg.data.shakespeare import SHAKESPEARE
from fedavg.data.synthetic_posts import SYNTHETIC_POSTS
from fedavg.errors import PlanError
from fedavg.specs import usage
from fedavg.types import FederatedData

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset for dataset in (MNIST, CIFAR10, SHAKESPEARE, POSTS, SYNTHETIC_POSTS)
}

__all__ = ["DATASETS", "ArrayData", "Dataset", "HeldOut", "Partition", "check", "load", "parse_partition", "pooled"]


def load(
    name: str,
    partition: str | Partition | None = None,
    clients: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
) -> FederatedData:
    """A data set, split over clients. What is not given is the data set's default."""
    wanted = check(name, partition, clients)
    return DATASETS[name].load(Request(wanted, clients, seed, data_directory(data_dir)))


def check(name: str, partition: str | Partition | None, clients: int | None) -> Partition:
    """Refuses, without reading any data, what `load` could never do; gives back the partition."""
    dataset = dataset_named(name)
    wanted = parse_partition(partition or dataset.default_partition)
    if not _can_split(dataset, wanted):
        forms = ", ".join(usage({kind: PARTITIONS[kind] for kind in dataset.partitions}))
        raise PlanError(f"data set {name} can not be split by {wanted}. Use one of: {forms}.")
    if clients is not None and clients < 1:
        raise PlanError(f"clients = {clients}: expected 1 or more.")
    return wanted


def _can_split(dataset: Dataset, wanted: Partition) -> bool:
    """One of its own kinds; a partition of a user's own deals out whatever has labels, which natural data has not."""
    if type(wanted) in PARTITIONS.values():
        return any(type(wanted) is PARTITIONS[kind] for kind in dataset.partitions)
    return any(PARTITIONS[kind] is not Natural for kind in dataset.partitions)


def dataset_named(name: str) -> Dataset:
    if name not in DATASETS:
        raise PlanError(f"unknown data set {name!r}. Use one of: {', '.join(DATASETS)}.")
    return DATASETS[name]
