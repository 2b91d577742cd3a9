"""Structured examples: a tensor, a tuple of tensors or a dict of tensors, whose rows belong together.

Everything that takes `x` or `y` apart goes through here. A leaf is a tensor, or a `Ragged` (rows of different lengths),
until the task's `collate` has made tensors of it. This module knows neither models nor clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:  # PyTorch takes a second to import, which the help texts need not wait for
    from torch import Tensor, nn

#: What a module takes, and what its output is compared with: a tensor, a tuple of tensors or a dict of tensors. It has
#: no narrower type since the task and its data agree on which.
Tree: TypeAlias = Any


class Pairs(Protocol):
    """Examples: inputs and targets, row by row."""

    def __init__(self, x: Tree, y: Tree) -> None: ...

    @property
    def x(self) -> Tree: ...

    @property
    def y(self) -> Tree: ...

    def __len__(self) -> int: ...


E = TypeVar("E", bound=Pairs)


def leaves(tree: Tree) -> list[Any]:
    """The tensors of a tree, in order."""
    if isinstance(tree, tuple):
        return list(tree)
    return list(tree.values()) if isinstance(tree, dict) else [tree]


def rebuilt(tree: Tree, values: Sequence[Any]) -> Tree:
    """A tree of the same form with other leaves."""
    if isinstance(tree, tuple):
        return tuple(values)
    return dict(zip(tree, values, strict=True)) if isinstance(tree, dict) else values[0]


def changed(tree: Tree, change: Callable[[Any], Any]) -> Tree:
    """A tree of the same form, each leaf changed."""
    if isinstance(tree, tuple | dict):
        return rebuilt(tree, [change(leaf) for leaf in leaves(tree)])
    return change(tree)  # by far the most frequent form; small clients notice the difference


def length(tree: Tree) -> int:
    """The number of rows."""
    first = leaves(tree)[0] if isinstance(tree, tuple | dict) else tree
    return int(first.shape[0])


def rows(tree: Tree, chosen: slice | Tensor) -> Tree:
    """Some of the rows: a slice of them, without a copy, or those that a tensor of numbers names."""
    if isinstance(chosen, slice):
        return changed(tree, lambda leaf: leaf[chosen])
    return changed(tree, lambda leaf: leaf.index_select(0, chosen))  # copies whole rows: leaf[chosen] is 10 x slower


def take(examples: E, chosen: slice | Tensor) -> E:
    """Some of the examples."""
    return type(examples)(rows(examples.x, chosen), rows(examples.y, chosen))


def batches(examples: E, size: int) -> Iterator[E]:
    """All examples in order; the last batch may be short."""
    for start in range(0, len(examples), size):
        yield take(examples, slice(start, start + size))


def joined(trees: Sequence[Tree]) -> Tree:
    """The rows of trees of one form, end to end."""
    columns = zip(*(leaves(tree) for tree in trees), strict=True)
    return rebuilt(trees[0], [_joined(column) for column in columns])


def _joined(column: Sequence[Any]) -> Any:
    import torch

    from fedavg.ragged import Ragged

    return Ragged.joined(column) if isinstance(column[0], Ragged) else torch.cat(list(column))


def call(module: nn.Module, x: Tree) -> Any:
    """The module's output: of one input, of several in order, or of several by name."""
    if isinstance(x, tuple):
        return module(*x)
    return module(**x) if isinstance(x, dict) else module(x)


def shapes(tree: Tree) -> str:
    """The form of a tree as text: '(10, 784) torch.float32', or that of each leaf by its name or number."""
    if isinstance(tree, tuple):
        return "(" + ", ".join(map(_shape, tree)) + ")"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{name}: {_shape(leaf)}" for name, leaf in tree.items()) + "}"
    return _shape(tree)


def _shape(leaf: Tensor) -> str:
    return f"{tuple(leaf.shape)} {leaf.dtype}"
