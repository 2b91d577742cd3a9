"""The recurrence of a peephole LSTM, and its inputs about texts: which tokens begin one, and transposed targets.

In a program, booleans are float32 numbers, 0 or 1.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from fedavg.engine.instructions import pointwise
from fedavg.engine.tape import Op
from fedavg.engine.writer import KnownScalar, Spot, Unsupported, Writer, merged
from fedavg.tasks import lstm, lstm_native

aten = torch.ops.aten
NUMBER_DIMENSIONS: Final = 3


def _units(w: Writer, weights: Any) -> int:
    units = w.dense(weights).shape[1]
    if lstm_native.kernel(units) != "native":
        raise Unsupported(f"an LSTM of {units} units")
    return units


def _scan(w: Writer, op: Op) -> None:
    gates_x, weights, peephole, keep = op.args
    units = _units(w, weights)
    steps, rows, _ = w.dense(gates_x).shape
    made = [w.made(op, place).spot for place in range(4)]
    told = [*map(w.spot, (gates_x, weights, peephole)), w.densely(keep)]
    w.add("scan", steps, rows, units, told, made, w.scratch(4 * units * units))


def _scan_back(w: Writer, op: Op) -> None:
    dh, weights, peephole, keep, c, tanh_c, gates = op.args
    units = _units(w, weights)
    steps, rows, _ = w.dense(c).shape
    told = [w.densely(dh), w.spot(weights), w.spot(peephole), w.densely(keep), *map(w.spot, (c, tanh_c, gates))]
    made = [w.made(op, place).spot for place in range(2)]
    room = w.scratch(4 * units * units), w.scratch(2 * rows * units)
    w.add("scan_back", steps, rows, units, told, made, *room)


def _equals(w: Writer, op: Op) -> None:
    x, number = op.args
    if number != int(number):
        raise Unsupported("whole numbers beside one that is not whole")
    to, numbers = w.truths(w.out(op)), w.numbers(x)
    dimensions = merged([*zip(to.shape, to.strides, numbers.strides, strict=True)], NUMBER_DIMENSIONS)
    w.add("equals", to.spot, Spot(numbers.root, 8 * numbers.offset), int(number), *zip(*dimensions, strict=True))


def copy_numbers(w: Writer, op: Op) -> None:
    """Copies int64 numbers, such as targets in another order."""
    to, numbers = w.numbers(w.out(op)), w.numbers(op.args[0])
    dimensions = merged([*zip(to.shape, to.strides, numbers.strides, strict=True)], NUMBER_DIMENSIONS)
    spots = [Spot(view.root, 8 * view.offset) for view in (to, numbers)]
    w.add("copy_numbers", *spots, *zip(*dimensions, strict=True))


def _not(w: Writer, op: Op) -> None:
    to = w.truths(w.out(op))
    pointwise(w, "scale", to, w.truths(op.args[0]), s=KnownScalar(-1.0))
    pointwise(w, "shift", to, to, s=KnownScalar(1.0))


def _as_numbers(w: Writer, op: Op) -> None:
    """Booleans as float32."""
    pointwise(w, "copy", w.made(op), w.truths(op.args[0]))


LSTM: Final[dict[Any, Callable[[Writer, Op], None]]] = {
    lstm.SCAN: _scan,
    lstm.SCAN_BACK: _scan_back,
    aten.eq.Scalar: _equals,
    aten.logical_not.default: _not,
    aten._to_copy.default: _as_numbers,
}
