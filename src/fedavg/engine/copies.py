"""Tensors that consist of pieces of others: the results of copies, joins and gradients of slices, before they are made.

A step is full of copies that only change the order in memory. An instruction that takes any strides can read directly
from the source; one that writes with any strides can write directly to the destination. This module is only the
geometry: how places in one tensor map to places in another. `writer.py` decides what is deferred, and until when.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Size, stride on one side, stride on the other.
Dimension = tuple[int, int, int]


@dataclass(frozen=True)
class Fragment:
    """Numbers of a tensor that are those of another one, `root`: where they begin in both, and the dimensions that they
    extend over, with the stride here and the stride there."""

    start: int
    root: str
    source: int
    dimensions: tuple[Dimension, ...]
    #: Whether nothing else reads the source.
    alone: bool

    @property
    def count(self) -> int:
        count = 1
        for size, _, _ in self.dimensions:
            count *= size
        return count

    @property
    def end(self) -> int:
        return self.start + sum((size - 1) * here for size, here, _ in self.dimensions) + 1

    @property
    def there(self) -> list[Dimension]:
        """The dimensions seen from the source."""
        return [(size, there, here) for size, here, there in self.dimensions]


def through(start: int, wanted: Sequence[Dimension], table: Sequence[Dimension]) -> tuple[int, list[Dimension]] | None:
    """The same places on the other side of a table of dimensions; None if no offset and strides describe them.

    A wanted dimension that crosses the end of one of the table's is split. The third number of each wanted dimension,
    the stride on its own other side, stays as it is.

    >>> through(6, [(2, 1, 100)], [(3, 4, 1), (4, 1, 3)])  # a row of (3, 4), where that lies turned
    (7, [(2, 3, 100)])
    """
    table = _joined(table)
    if not all(outer[1] >= inner[0] * inner[1] for outer, inner in pairwise(table)):
        return None
    begins, rooms = 0, []
    for size, inside, outside in table:
        index, start = divmod(start, inside) if inside else (size, start)
        if not 0 <= index < size:
            return None
        begins += index * outside
        rooms.append((index, size - index))
    if start:
        return None
    found, todo = [], list(reversed(wanted))
    while todo:
        size, stride, other = todo.pop()
        if size == 1 or stride == 0:
            found.append((size, 0, other))
            continue
        at = next((i for i, entry in enumerate(table) if entry[1] <= stride and stride % entry[1] == 0), None)
        if at is None:
            return None
        whole, inside, outside = table[at]
        step, (index, room) = stride // inside, rooms[at]
        if step * (size - 1) < room:
            rooms[at] = index + step * (size - 1), room - step * (size - 1)
            found.append((size, step * outside, other))
            continue
        fits = whole // step if whole % step == 0 and not index else 1
        if fits in (1, size) or size % fits:
            return None
        todo += [(fits, stride, other), (size // fits, stride * fits, other * fits)]
    return begins, found


def disjoint(pieces: Sequence[Fragment]) -> bool:
    """Whether they lie one after the other."""
    ordered = sorted(pieces, key=lambda piece: piece.start)
    return all(a.end <= b.start for a, b in pairwise(ordered))


def _joined(table: Sequence[Dimension]) -> list[Dimension]:
    """From the largest stride to the smallest; neighbours that are contiguous on both sides are merged."""
    joined: list[Dimension] = []
    for size, inside, outside in sorted((entry for entry in table if entry[0] > 1), key=lambda entry: -entry[1]):
        if joined and joined[-1][1:] == (inside * size, outside * size):
            joined[-1] = (joined[-1][0] * size, inside, outside)
        else:
            joined.append((size, inside, outside))
    return joined
