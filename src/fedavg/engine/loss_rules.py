"""Cross entropy as one instruction forward and one backward, instead of a log-softmax and a loss over it."""

from collections.abc import Callable
from typing import Any, Final

import torch

from fedavg.engine.layer_rules import LAYERS
from fedavg.engine.tape import Op
from fedavg.engine.writer import CrossEntropy, Movable, Spot, TensorView, Writer

aten = torch.ops.aten
FORWARD: Final = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
BACKWARD: Final = (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
SOFTMAX_BACK: Final = aten._log_softmax_backward_data.default


def _softmax(w: Writer, op: Op) -> None:
    found = _cross_entropy(w, op)
    if found is None:
        LAYERS[op.func](w, op)
    else:
        w.losses[w.tape.roots[op.outputs[0] or ""]] = found


def _cross_entropy(w: Writer, op: Op) -> CrossEntropy | None:
    """The fused loss, if only a loss over classes and its gradient read these logarithms."""
    root = w.tape.roots[op.outputs[0] or ""]
    readers = {kind: reader for reader in w.readers[root] if reader for kind in [_kind(reader)]}
    if len(w.readers[root]) != 3 or set(readers) != {"loss", "back", "softmax"}:
        return None
    loss, back = readers["loss"], readers["back"]
    _, target, weight, reduction, ignored = loss.args
    x, gradient = _rows(w.unmade(op.args[0])), w.tape.roots[back.outputs[0] or ""]
    if x is None or op.args[1] != 1 or weight is not None or reduction not in (1, 2):
        return None
    if [reader is readers["softmax"] for reader in w.readers[gradient]] != [True]:
        return None
    w.view(op.args[0])
    counted = loss.outputs[1]
    w.sizes[f"noted of {root}"] = 4 * x.shape[0] * x.shape[1]
    spot = Spot(w.tape.roots[counted], 0) if counted else w.scratch(1)
    return CrossEntropy(x, target, ignored, reduction == 1, back.args[0], spot, Spot(f"noted of {root}", 0))


def _kind(op: Op) -> str:
    if op.func is SOFTMAX_BACK:
        return "softmax"
    return "loss" if op.func in FORWARD else "back" if op.func in BACKWARD else "other"


def _rows(view: TensorView) -> TensorView | None:
    """(examples, classes, ...) as (examples, rest, classes), if the rest can be one dimension with one stride."""
    if len(view.shape) < 2:
        return None
    between, step = 1, 0
    for size, stride in reversed([*zip(view.shape[2:], view.strides[2:], strict=True)]):
        if size != 1 and between != 1 and stride != between * step:
            return None
        step = stride if between == 1 else step
        between *= size
    shape, strides = (view.shape[0], between, view.shape[1]), (view.strides[0], step, view.strides[1])
    return TensorView(view.root, view.offset, shape, strides)


def _told(w: Writer, loss: CrossEntropy) -> list[Any]:
    """The arguments that both instructions begin with."""
    target = w.whole_numbers(loss.target)
    row = w.scratch(2 * loss.x.shape[2])
    return [loss.x.shape, loss.x.spot, loss.x.strides, target, loss.ignored, loss.mean, loss.counted, loss.noted, row]


def _loss(w: Writer, op: Op) -> None:
    loss = w.losses.get(w.tape.roots[op.args[0].name])
    if loss is None:
        LAYERS[op.func](w, op)
    else:
        w.add("cross_entropy", _told(w, loss), w.spot(w.out(op)))


def _loss_back(w: Writer, op: Op) -> None:
    if w.tape.roots[op.args[1].name] not in w.losses:  # otherwise it is part of the softmax's gradient
        LAYERS[op.func](w, op)


def _softmax_back(w: Writer, op: Op) -> None:
    loss, to = w.losses.get(w.tape.roots[op.args[1].name]), _rows(w.made(op))
    if loss is None:
        LAYERS[op.func](w, op)
        return
    assert to, "as dense as what PyTorch makes"
    movable = Movable(to, told=3)
    if w.is_kept(to.root):
        w.movable[to.root] = movable
    w.add("cross_entropy_back", _told(w, loss), w.spot(loss.dy), movable)


LOSSES: Final[dict[Any, Callable[[Writer, Op], None]]] = {
    aten._log_softmax.default: _softmax,
    **dict.fromkeys(FORWARD, _loss),
    **dict.fromkeys(BACKWARD, _loss_back),
    SOFTMAX_BACK: _softmax_back,
}
