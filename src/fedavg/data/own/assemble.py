"""From the examples of each client, and those of a test set, to `ArrayData`. Knows not where they came from."""

from typing import Final

import numpy as np

from fedavg.data.federated import ArrayData
from fedavg.data.partition import Partition, parse_partition
from fedavg.data.values import Pair, as_tensor, joined, numbered
from fedavg.errors import DataError
from fedavg.seeds import NONE, rng
from fedavg.types import Examples

#: The share of each client's examples that makes the test set where none is given.
HELD_OUT: Final = 0.2


def dealt(pair: Pair, partition: str | Partition, clients: int, seed: int) -> list[Pair]:
    """Examples without clients, dealt out to so many."""
    x, y = pair
    if len(x) != len(y):
        raise DataError(f"x has {len(x)} rows and y {len(y)}; expected as many rows in both.")
    parts = parse_partition(partition).deal(numbered(y), clients, rng(seed, NONE, NONE, "partition"))
    return [(x[part], y[part]) for part in parts]


def assembled(name: str, clients: list[Pair], test: Pair | None, held_out: float) -> ArrayData:
    """One ArrayData of the pairs, in their order; `clients` lose their last examples where there is no test."""
    _check(name, clients, test)
    if test is None:
        clients, test = _hold_out(clients, held_out)
    x = joined([x for x, _ in clients])
    labels = joined([*(y for _, y in clients), test[1]])
    y = as_tensor(numbered(labels), f"{name}: y")
    sizes = [len(y) for _, y in clients]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    tested = Examples(as_tensor(test[0], f"{name}: test x"), y[len(x) :])
    return ArrayData(name, as_tensor(x, f"{name}: x"), y[: len(x)], parts, tested)


def _check(name: str, clients: list[Pair], test: Pair | None) -> None:
    if not clients:
        raise DataError(f"{name} has no clients: expected one pair (x, y) at least.")
    everyone = [*((f"client {k}", pair) for k, pair in enumerate(clients)), *([("test", test)] if test else [])]
    for who, (x, y) in everyone:
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
            raise DataError(f"{name}, {who}: x has shape {x.shape} and y {y.shape}; expected as many rows in both.")
        for what, values, first in (("x", x, clients[0][0]), ("y", y, clients[0][1])):
            if len(values) and len(first) and values.shape[1:] != first.shape[1:]:
                raise DataError(
                    f"{name}, {who}: {what} of an example has shape {values.shape[1:]}, client 0 has "
                    f"{first.shape[1:]}. Make them equal."
                )
            if (values.dtype.kind in "US") != (first.dtype.kind in "US") and len(values) and len(first):
                raise DataError(
                    f"{name}, {who}: {what} has {values.dtype}, client 0 has {first.dtype}: expected one kind."
                )


def _hold_out(clients: list[Pair], fraction: float) -> tuple[list[Pair], Pair]:
    """The last examples of each client, one at least, make the test; a client with one example keeps it."""
    if not 0 < fraction < 1:
        raise DataError(f"held_out = {fraction}: expected a share between 0 and 1, or give a test set.")
    cuts = [len(y) - max(1, int(len(y) * fraction)) if len(y) > 1 else len(y) for _, y in clients]
    pairs = list(zip(clients, cuts, strict=True))
    test = joined([x[cut:] for (x, _), cut in pairs]), joined([y[cut:] for (_, y), cut in pairs])
    return [(x[:cut], y[:cut]) for (x, y), cut in pairs], test
