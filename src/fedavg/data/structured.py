"""Own data of any form: tuples and dicts of arrays, and rows of unlike lengths, become structured examples."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedavg import trees
from fedavg.data.federated import ArrayData
from fedavg.errors import DataError
from fedavg.ragged import Ragged
from fedavg.types import Examples, Tree


def is_structured(values: object) -> bool:
    """True for what one array can not hold: a tuple or a dict of arrays, or rows of unlike lengths."""
    return isinstance(values, tuple | dict | Ragged) or (isinstance(values, list) and _lengths_differ(values))


def as_tree(values: Any, what: str, to_tensor: Callable[[np.ndarray, str], Tensor]) -> Tree:
    """Arrays, lists or tensors, alone or in a tuple or a dict, as tensors; rows of unlike lengths as a `Ragged`."""
    if isinstance(values, tuple):
        return tuple(as_leaf(part, f"{what}[{at}]", to_tensor) for at, part in enumerate(values))
    if isinstance(values, dict):
        return {name: as_leaf(part, f"{what}[{name!r}]", to_tensor) for name, part in values.items()}
    return as_leaf(values, what, to_tensor)


def as_leaf(values: Any, what: str, to_tensor: Callable[[np.ndarray, str], Tensor]) -> Tensor | Ragged:
    if isinstance(values, Ragged):
        return values
    if isinstance(values, list) and _lengths_differ(values):
        return Ragged.of([to_tensor(np.asarray(row), f"{what}, row {number}") for number, row in enumerate(values)])
    return to_tensor(np.asarray(values), what)


def stacked(items: Iterable[Any]) -> Any:
    """The values of single examples, each a number, an array, or a tuple or a dict of them, as those of all."""
    rows = list(items)
    if rows and isinstance(rows[0], tuple):
        return tuple(stacked(column) for column in zip(*rows, strict=True))
    if rows and isinstance(rows[0], dict):
        return {name: stacked(row[name] for row in rows) for name in rows[0]}
    arrays = [np.asarray(row) for row in rows]
    return arrays if _lengths_differ(arrays) else np.asarray(arrays)


def assemble(
    name: str, clients: Sequence[tuple[Tree, Tree]], test: tuple[Tree, Tree] | None, share: float
) -> ArrayData:
    """Data of these clients; where there is no test, the last examples of each are held out for it."""
    if not clients:
        raise DataError(f"{name} has no clients: expected one pair (x, y) at least.")
    every = _alike([Examples(x, y) for x, y in (*clients, *([test] if test else []))])
    examples, held = every[: len(clients)], every[-1] if test else None
    for k, own in enumerate(examples):
        _check_form(name, k, own, examples[0])
    if held is None:
        if not 0 < share < 1:
            raise DataError(f"held_out = {share}: expected a share between 0 and 1, or give a test set.")
        cuts = [len(own) - max(1, int(len(own) * share)) if len(own) > 1 else len(own) for own in examples]
        pairs = list(zip(examples, cuts, strict=True))
        held = _joined([trees.take(own, slice(cut, None)) for own, cut in pairs])
        examples = [trees.take(own, slice(0, cut)) for own, cut in pairs]
    whole = _joined(examples)
    sizes = [len(own) for own in examples]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return ArrayData(name, whole.x, whole.y, parts, held)


def _alike(sets: list[Examples]) -> list[Examples]:
    """What is ragged in one set is so in all: somebody's rows may happen to be of one length."""
    return [
        Examples(x, y)
        for x, y in zip(_ragged_alike([e.x for e in sets]), _ragged_alike([e.y for e in sets]), strict=True)
    ]


def _ragged_alike(several: list[Tree]) -> list[Tree]:
    columns = [trees.leaves(tree) for tree in several]
    ragged = {at for column in columns for at, leaf in enumerate(column) if isinstance(leaf, Ragged)}
    return [
        trees.rebuilt(tree, [_as_ragged(leaf) if at in ragged else leaf for at, leaf in enumerate(trees.leaves(tree))])
        for tree in several
    ]


def _as_ragged(leaf: Tensor | Ragged) -> Tensor | Ragged:
    return leaf if isinstance(leaf, Ragged) or leaf.dim() < 2 else Ragged.of(list(leaf))


def _joined(parts: Sequence[Examples]) -> Examples:
    return Examples(trees.joined([part.x for part in parts]), trees.joined([part.y for part in parts]))


def _check_form(name: str, k: int, own: Examples, first: Examples) -> None:
    """As many rows everywhere, and the same leaves as the first client has."""
    every = [*trees.leaves(own.x), *trees.leaves(own.y)]
    if len({len(leaf) for leaf in every}) > 1:
        raise DataError(
            f"{name}, client {k}: x has shape {trees.shapes(own.x)} and y {trees.shapes(own.y)}; "
            "expected as many rows in all."
        )
    if _form(own) != _form(first):
        raise DataError(
            f"{name}, client {k}: an example has x {trees.shapes(own.x)} and y {trees.shapes(own.y)}, client 0 has "
            f"x {trees.shapes(first.x)} and y {trees.shapes(first.y)}; expected the same but for the number of rows."
        )


def _form(examples: Examples) -> list[Any]:
    names = [list(tree) if isinstance(tree, dict) else [] for tree in (examples.x, examples.y)]
    leaves = [*trees.leaves(examples.x), *trees.leaves(examples.y)]
    return [*names, *((leaf.dtype, tuple(leaf.shape[1:])) for leaf in leaves)]


def _lengths_differ(rows: Sequence[Any]) -> bool:
    """True for rows that are sequences of unlike lengths."""
    sequences = [isinstance(row, list) or (isinstance(row, Tensor | np.ndarray) and row.ndim > 0) for row in rows]
    return all(sequences) and len({len(row) for row in rows}) > 1
