"""A `collate` that pads: rows of different lengths become tensors, batch by batch."""

from typing import Any

from fedavg import trees
from fedavg.ragged import Ragged


def padded(value: float = 0, target: float = -100, multiple: int = 8) -> Any:
    """A `collate` for a task: pads each ragged leaf of x with `value` and of y with `target`, which cross entropy
    ignores. For masks or another shape, write your own with `Ragged.padded` and `Ragged.mask`.

    >>> import fedavg, torch
    >>> task = fedavg.Task("words", lambda: torch.nn.Embedding(10, 10), collate=fedavg.padded(0))
    """

    def pad(tree: Any, filler: float) -> Any:
        return trees.changed(tree, lambda leaf: leaf.padded(filler, multiple) if isinstance(leaf, Ragged) else leaf)

    def collate(x: Any, y: Any) -> tuple[Any, Any]:
        return pad(x, value), pad(y, target)

    return collate
