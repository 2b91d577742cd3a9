"""One tape for batches of every length, from recordings of two lengths.

The two must be the same list of operators, on tensors of the same kind. A number in which they differ must be
proportional to the length: it becomes `PerRow`. Where that does not hold (a loss over all pairs of examples, a layer
that counts its rows in another way), each length is recorded separately.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedavg.engine.tape import Layout, Op, Tape


@dataclass(frozen=True)
class PerRow:
    """A number that is proportional to the length of the batch."""

    times: int
    #: True where it stands for a float.
    is_float: bool = False

    def at(self, length: int) -> int | float:
        return float(self.times * length) if self.is_float else self.times * length


@dataclass(frozen=True)
class Recording:
    """A step recorded at one length of batches, or at two lengths from which one tape can be made."""

    tapes: list[Tape]
    lengths: list[int]

    def joined(self, change: Callable[[Tape], Tape] = lambda tape: tape) -> Tape | None:
        """Its tape, after a change; None if the two lengths cannot share one tape."""
        tapes = [change(tape) for tape in self.tapes]
        return tapes[0] if len(tapes) == 1 else for_all_lengths(tapes[0], self.lengths[0], tapes[1], self.lengths[1])


class Differs(Exception):
    """The two recordings do not have the same form."""


def for_all_lengths(first: Tape, first_length: int, second: Tape, second_length: int) -> Tape | None:
    """A tape in which numbers that grow with the batch are `PerRow`; None if there is none."""
    both = _Both(first_length, second_length)
    try:
        if len(first.ops) != len(second.ops) or _names(first) != _names(second) or not _same_constants(first, second):
            raise Differs
        ops = [_op(both, a, b) for a, b in zip(first.ops, second.ops, strict=True)]
        layouts = {name: _layout(both, layout, second.layouts[name]) for name, layout in first.layouts.items()}
    except (Differs, KeyError):
        return None
    return replace(first, ops=ops, layouts=layouts)


def batch_lengths(sizes: np.ndarray, batch: float, drop_last: bool) -> list[int]:
    """The lengths of all batches of clients with these sizes.

    >>> batch_lengths(np.array([3, 10, 24]), 10, drop_last=False)
    [3, 4, 10]
    """
    able = sizes[sizes > 0]
    full = np.minimum(able, batch).astype(np.int64)
    last = full if drop_last else np.where(able % full, able % full, full)
    return [int(length) for length in np.union1d(full, last)]


def at_length(tape: Tape, length: int) -> Tape:
    """A tape for all lengths, specialised to one length."""
    ops = [replace(op, args=_at(op.args, length), kwargs=_at(op.kwargs, length)) for op in tape.ops]
    layouts = {name: _layout_at(layout, length) for name, layout in tape.layouts.items()}
    return replace(tape, ops=ops, layouts=layouts)


@dataclass(frozen=True)
class _Both:
    first: int
    second: int

    def join(self, a: Any, b: Any) -> Any:
        """The common value for a value of the first recording and its counterpart in the second."""
        if type(a) is not type(b):
            raise Differs
        if isinstance(a, tuple | list):
            if len(a) != len(b):
                raise Differs
            return type(a)(self.join(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict):
            if a.keys() != b.keys():
                raise Differs
            return {key: self.join(value, b[key]) for key, value in a.items()}
        return a if a == b or (a != a and b != b) else self._rows(a, b)

    def _rows(self, a: Any, b: Any) -> PerRow:
        numbers = isinstance(a, int | float) and not isinstance(a, bool)
        if not numbers or a * self.second != b * self.first or a % self.first:
            raise Differs
        return PerRow(int(a // self.first), isinstance(a, float))


def _names(tape: Tape) -> Any:
    return tape.inputs, tape.parameters, tape.state, tape.loss, tape.gradients, tape.roots


def _same_constants(first: Tape, second: Tape) -> bool:
    """Whether the constants of the step are the same: they must not depend on the batch."""
    pairs = zip(first.state_tensors, second.state_tensors, strict=True)
    return all(a is b or (a.shape == b.shape and torch.equal(a, b)) for a, b in pairs)


def _op(both: _Both, a: Op, b: Op) -> Op:
    if a.func is not b.func or a.outputs != b.outputs:
        raise Differs
    return replace(a, args=both.join(a.args, b.args), kwargs=both.join(a.kwargs, b.kwargs))


def _layout(both: _Both, a: Layout, b: Layout) -> Layout:
    if a.dtype != b.dtype:
        raise Differs
    return Layout(both.join(a.shape, b.shape), both.join(a.strides, b.strides), both.join(a.offset, b.offset), a.dtype)


def _layout_at(layout: Layout, length: int) -> Layout:
    shape, strides = _at(layout.shape, length), _at(layout.strides, length)
    return Layout(shape, strides, _at(layout.offset, length), layout.dtype)


def _at(value: Any, length: int) -> Any:
    if isinstance(value, PerRow):
        return value.at(length)
    if isinstance(value, tuple | list):
        return type(value)(_at(item, length) for item in value)
    return {key: _at(item, length) for key, item in value.items()} if isinstance(value, dict) else value
