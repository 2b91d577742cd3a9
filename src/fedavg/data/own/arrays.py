"""Own data that is in memory, or that Python can index: arrays, lists and PyTorch datasets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from fedavg import trees
from fedavg.data.federated import ArrayData
from fedavg.data.own.assemble import HELD_OUT, assembled, check_rows, dealt
from fedavg.data.partition import Partition
from fedavg.data.values import XY, as_column, as_columns, as_leaf, is_words, numbered
from fedavg.errors import DataError
from fedavg.trees import Tree
from fedavg.types import Examples

#: The entries of examples that are dicts: one, several (x is then a dict of them), or none for examples that are pairs.
Names = str | Sequence[str] | None


def from_clients(
    clients: "Sequence[tuple[Tree, Tree] | Dataset[Any]]",
    test: "tuple[Tree, Tree] | Dataset[Any] | None" = None,
    held_out: float = HELD_OUT,
    name: str = "own",
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> ArrayData:
    """A list with (x, y) of each client (arrays, tensors or lists of rows), or with a PyTorch dataset of each client.

    `x` and `y` may be tuples or dicts of such; they name the entries of datasets whose examples are dicts.

    >>> data = from_clients([([[1.0, 2.0], [3.0, 4.0]], [0, 1]), ([[5.0, 6.0]], [1])], test=([[7.0, 8.0]], [0]))
    >>> data.sizes.tolist()
    [2, 1]
    """
    if not isinstance(clients, Iterable):
        raise DataError(
            f"from_clients: got {type(clients).__name__}; expected a list with (x, y), or a dataset, of each client"
        )
    pairs = [_pair(client, f"{name}, client {k}", x, y) for k, client in enumerate(clients)]
    return assembled(name, pairs, None if test is None else _pair(test, f"{name}, test", x, y), held_out, classes)


def from_arrays(
    x: Tree,
    y: Tree,
    partition: str | Partition,
    clients: int,
    seed: int = 0,
    test: tuple[Tree, Tree] | None = None,
    held_out: float = HELD_OUT,
    name: str = "own",
    classes: Sequence[str] | None = None,
) -> ArrayData:
    """Arrays, tensors or lists with a row per example, dealt out by a partition such as "shards:2".

    >>> import numpy as np
    >>> data = from_arrays(np.zeros((10, 3)), np.arange(10) % 2, "iid", clients=2, test=(np.zeros((1, 3)), [0]))
    >>> data.sizes.tolist()
    [5, 5]
    """
    held = None if test is None else _pair(test, f"{name}, test", None, None)
    return assembled(name, dealt(_pair((x, y), name, None, None), partition, clients, seed), held, held_out, classes)


def from_dataset(
    dataset: "Dataset[Any]",
    partition: str | Partition,
    clients: int,
    seed: int = 0,
    test: "Dataset[Any] | None" = None,
    held_out: float = HELD_OUT,
    name: str = "own",
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> ArrayData:
    """A PyTorch dataset with a length, dealt out by a partition such as "shards:2" (`fedavg data show`).

    Its examples are pairs (x, y), or dicts with the entries that `x` and `y` name.

    >>> import torch
    >>> examples = torch.utils.data.TensorDataset(torch.zeros(10, 3), torch.arange(10) % 2)
    >>> from_dataset(examples, "iid", clients=2, test=examples).sizes.tolist()
    [5, 5]
    """
    held = None if test is None else _pair(test, f"{name}, test", x, y)
    return assembled(name, dealt(_pair(dataset, name, x, y), partition, clients, seed), held, held_out, classes)


def as_examples(source: Any, classes: Sequence[str] | None, what: str) -> Examples:
    """The examples of one client alone: an `Examples`, a pair (x, y) or a dataset.

    Words as labels are numbered by `classes`. Without them they are refused: others have other labels, and would number
    theirs in another way.
    """
    if isinstance(source, Examples):
        return source
    x, y = _pair(source, what, None, None)
    check_rows(what, x, y)
    if classes is None and any(is_words(column) for column in trees.leaves(y)):
        raise DataError(
            f"{what}: the labels are words, and the task does not say how they are numbered; expected numbers, or a "
            "task that declares its classes, as in Task(..., classes=('cat', 'dog'))"
        )
    labels = trees.changed(y, lambda column: numbered(column, classes))
    return Examples(
        trees.changed(x, lambda column: as_leaf(column, f"{what}: x")),
        trees.changed(labels, lambda column: as_leaf(column, f"{what}: y")),
    )


def _pair(source: Any, what: str, x: Names, y: Names) -> XY:
    if _is_pair(source):
        return as_columns(source[0], f"{what}: x"), as_columns(source[1], f"{what}: y")
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise DataError(
            f"{what} is {type(source).__name__}; expected a pair (x, y), or a dataset with a length whose examples are "
            "pairs or dicts. A dataset without a length: list(dataset) has one."
        )
    pairs = [_example(example, f"{what}, example {n}", x, y) for n, example in enumerate(_examples(source))]
    return _stacked([a for a, _ in pairs], f"{what}: x"), _stacked([b for _, b in pairs], f"{what}: y")


def _is_pair(source: Any) -> bool:
    """A tuple of two, or a list of two that are not examples themselves."""
    if isinstance(source, list):
        return len(source) == 2 and not all(isinstance(item, tuple | Mapping) for item in source)
    return isinstance(source, tuple) and len(source) == 2


def _examples(dataset: Any) -> Iterator[Any]:
    """By index: a PyTorch dataset need not know where it ends, so it cannot be iterated over."""
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(
            f"a {type(dataset).__name__} has no length ({error}); expected one that has. Try list(...)."
        ) from None
    return (dataset[index] for index in range(count))


def _stacked(values: list[Any], what: str) -> Tree:
    """A column of the examples' values; of tuples or dicts of them a tuple or dict of columns."""
    if values and isinstance(values[0], Mapping):
        return {str(name): as_column([value[name] for value in values], f"{what}[{name!r}]") for name in values[0]}
    if values and isinstance(values[0], tuple):
        return tuple(as_column(list(column), f"{what}[{n}]") for n, column in enumerate(zip(*values, strict=True)))
    return as_column(values, what)


def _example(example: Any, what: str, x: Names, y: Names) -> tuple[Any, Any]:
    if isinstance(example, Mapping):
        return _entries(example, what, "x", x), _entries(example, what, "y", y)
    if not isinstance(example, tuple | list) or len(example) != 2:
        raise DataError(f"{what} is {type(example).__name__} {example!r:.60}; expected a pair (x, y) or a dict.")
    if x or y:
        raise DataError(f"{what} is a pair, which x={x!r} and y={y!r} cannot name; leave them out.")
    return example[0], example[1]


def _entries(example: Mapping[str, Any], what: str, role: str, names: Names) -> Any:
    """What the names of x or y stand for in an example that is a dict."""
    for name in [names] if isinstance(names, str | None) else names:
        if name not in example:
            keys, got = ", ".join(map(repr, example)), f"{role}={name!r}" if name else f"no {role}=..."
            raise DataError(
                f"{what} has {keys}, and {got} was given; name one of them, as in {role}={next(iter(example))!r}."
            )
    return example[names] if isinstance(names, str) else {name: example[name] for name in names or ()}
