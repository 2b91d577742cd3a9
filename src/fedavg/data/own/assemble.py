"""From the examples of each client, and those of a test set, to `ArrayData`. It does not know where they came from."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fedavg import trees
from fedavg.data.federated import ArrayData
from fedavg.data.partition import Partition, parse_partition
from fedavg.data.values import XY, as_leaf, as_ragged, form, is_words, joined, numbered, rows_of
from fedavg.errors import DataError
from fedavg.seeds import NONE, rng
from fedavg.trees import Tree
from fedavg.types import Examples

#: The share of each client's examples that makes the test set where none is given.
HELD_OUT: Final = 0.2


def dealt(pair: XY, partition: str | Partition, clients: int, seed: int) -> list[XY]:
    """Examples without clients, dealt out to this many."""
    x, y = pair
    if len({len(column) for column in (*trees.leaves(x), *trees.leaves(y))}) > 1:
        raise DataError(f"x has {trees.length(x)} rows and y {trees.length(y)}; expected as many rows in both.")
    parts = parse_partition(partition).deal(_labels(y, str(partition)), clients, rng(seed, NONE, NONE, "partition"))
    return [(rows_of(x, part), rows_of(y, part)) for part in parts]


def _labels(y: Tree, partition: str) -> np.ndarray:
    """What a partition sorts by. Targets need not be labels if the partition does not look at them."""
    if isinstance(y, np.ndarray) and y.ndim == 1:
        return np.asarray(numbered(y))
    if partition.partition(":")[0] not in ("iid", "unbalanced"):
        raise DataError(
            f"partition '{partition}' deals by labels, and y has more than one number for an example; use iid."
        )
    return np.zeros(trees.length(y), np.int64)


def assembled(
    name: str, clients: list[XY], test: XY | None, held_out: float, classes: Sequence[str] | None = None
) -> ArrayData:
    """One ArrayData of the pairs, in their order; `clients` lose their last examples where there is no test.

    Where they have none to lose, there is no test set.
    """
    _check(name, clients, test)
    given = test is not None
    if test is None:
        clients, test = _hold_out(clients, held_out)
    x, test_x = _alike([joined([x for x, _ in clients]), test[0]])
    sizes = [trees.length(y) for _, y in clients]
    words = joined([*(y for _, y in clients), test[1]])
    labels = trees.changed(words, lambda column: numbered(column, classes))
    y, test_y = rows_of(labels, slice(0, sum(sizes))), rows_of(labels, slice(sum(sizes), None))
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    tested = Examples(_leaves(test_x, f"{name}: test x"), _leaves(test_y, f"{name}: test y"))
    named = _names(words, classes)
    judged_on = tested if given or len(tested) else None
    return ArrayData(name, _leaves(x, f"{name}: x"), _leaves(y, f"{name}: y"), parts, judged_on, named)


def _names(labels: Tree, classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """What the numbers of labels stand for, if they are words."""
    if not (isinstance(labels, np.ndarray) and is_words(labels)):
        return None
    return tuple(classes) if classes is not None else tuple(map(str, np.unique(labels)))


def _alike(parts: list[Tree]) -> list[Tree]:
    """Sequences of one length still count as sequences if those of other clients differ in length."""
    columns = [as_ragged(column) for column in zip(*map(trees.leaves, parts), strict=True)]
    return [trees.rebuilt(part, leaves) for part, leaves in zip(parts, zip(*columns, strict=True), strict=True)]


def _leaves(tree: Tree, what: str) -> Tree:
    return trees.changed(tree, lambda column: as_leaf(column, what))


def _check(name: str, clients: list[XY], test: XY | None) -> None:
    if not clients:
        raise DataError(f"{name} has no clients: expected one pair (x, y) at least.")
    everyone = [*((f"client {k}", pair) for k, pair in enumerate(clients)), *([("test", test)] if test else [])]
    known = next((pair for _, pair in everyone if trees.length(pair[1])), clients[0])
    for who, (x, y) in everyone:
        check_rows(f"{name}, {who}", x, y)
        if trees.length(y):
            _check_form(f"{name}, {who}: x", x, known[0])
            _check_form(f"{name}, {who}: y", y, known[1])


def check_rows(what: str, x: Tree, y: Tree) -> None:
    columns = [*trees.leaves(x), *trees.leaves(y)]
    if any(len(column.shape) < 1 for column in columns) or len({len(column) for column in columns}) > 1:
        raise DataError(f"{what}: x has shape {_shapes(x)} and y {_shapes(y)}; expected as many rows in both.")


def _check_form(what: str, tree: Tree, known: Tree) -> None:
    names, expected = (list(t) if isinstance(t, dict) else len(trees.leaves(t)) for t in (tree, known))
    if names != expected:
        raise DataError(f"{what} has {names}, other clients have {expected}: expected the same inputs.")
    for column, other in zip(trees.leaves(tree), trees.leaves(known), strict=True):
        sequences = "?" in (*form(column), *form(other)) and len(form(column)) == len(form(other))
        if form(column) != form(other) and not sequences:
            raise DataError(
                f"{what} of an example has shape {form(column)}, client 0 has {form(other)}. Make them equal."
            )
        if is_words(column) != is_words(other):
            raise DataError(f"{what} has {column.dtype}, client 0 has {other.dtype}: expected one kind.")


def _shapes(tree: Tree) -> str:
    return ", ".join(str(tuple(column.shape)) for column in trees.leaves(tree))


def _hold_out(clients: list[XY], fraction: float) -> tuple[list[XY], XY]:
    """The last examples of each client, at least one, make the test set; a client with one example keeps it."""
    if not 0 < fraction < 1:
        raise DataError(f"held_out = {fraction}: expected a share between 0 and 1, or give a test set.")
    sizes = [trees.length(y) for _, y in clients]
    cuts = [n - max(1, int(n * fraction)) if n > 1 else n for n in sizes]
    kept = [(rows_of(x, slice(0, cut)), rows_of(y, slice(0, cut))) for (x, y), cut in zip(clients, cuts, strict=True)]
    held = [
        (rows_of(x, slice(cut, None)), rows_of(y, slice(cut, None))) for (x, y), cut in zip(clients, cuts, strict=True)
    ]
    return kept, (joined([x for x, _ in held]), joined([y for _, y in held]))
