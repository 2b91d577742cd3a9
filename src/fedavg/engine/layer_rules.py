"""What the operators of layers become in a program: norms, softmax, losses over classes, embeddings, attention."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, Final

import torch

from fedavg.engine.tape import Op
from fedavg.engine.writer import NOWHERE, KnownScalar, Movable, Spot, TensorView, Unsupported, Writer, merged

aten = torch.ops.aten
#: Queries handled at a time by attention, as in attention.h.
QUERIES: Final = 64


def _layer_norm(w: Writer, op: Op) -> None:
    x, shape, scale, shift, eps = op.args
    n = torch.Size(shape).numel()
    parts = [w.spot(w.out(op, place)) for place in range(3)]
    w.add(
        "layer_norm", w.view(x).count // n, n, w.spot(x), w.spot(scale), w.spot(shift), KnownScalar(float(eps)), *parts
    )  # fmt: skip


def _layer_norm_back(w: Writer, op: Op) -> None:
    dy, x, shape, mean, scale, weight, _, _ = op.args
    n = torch.Size(shape).numel()
    made = [w.spot(w.out(op, place)) for place in range(3)]
    w.add("layer_norm_back", w.view(x).count // n, n, *map(w.spot, (dy, x, mean, scale, weight)), *made)


def _pixels(w: Writer, ref: Any) -> Spot:
    """Images with contiguous channels."""
    view = w.view(ref)
    images, channels, *sides = view.shape
    turned = TensorView(
        view.root, view.offset, (images, *sides, channels), (view.strides[0], *view.strides[2:], view.strides[1])
    )
    if not turned.is_dense:
        raise Unsupported("images whose channels do not lie side by side")
    return view.spot


def _group_norm(w: Writer, op: Op) -> None:
    x, weight, bias, images, channels, pixels, groups, eps = op.args
    y, mean, scale = (w.out(op, place) for place in range(3))
    w.add(
        "group_norm", images, pixels, channels, groups, _pixels(w, x), w.spot(weight), w.spot(bias),
        KnownScalar(float(eps)), _pixels(w, y), w.spot(mean), w.spot(scale), w.scratch(2 * channels),
    )  # fmt: skip


def _group_norm_back(w: Writer, op: Op) -> None:
    dy, x, mean, scale, weight, images, channels, pixels, groups, _ = op.args
    dx, dw, db = (w.out(op, place) for place in range(3))
    w.add(
        "group_norm_back", images, pixels, channels, groups, _pixels(w, dy), _pixels(w, x), w.spot(mean), w.spot(scale),
        w.spot(weight), NOWHERE if dx is None else _pixels(w, dx), w.spot(dw), w.spot(db), w.scratch(4 * channels),
    )  # fmt: skip


def _softmax(back: bool, logarithms: bool) -> Callable[[Writer, Op], None]:
    def rule(w: Writer, op: Op) -> None:
        x, y, to = w.view(op.args[0]), w.view(op.args[1] if back else op.args[0]), w.made(op)
        dim = op.args[2 if back else 1] % len(x.shape)
        others = [d for d in range(len(x.shape)) if d != dim]
        rows = merged([(x.shape[d], x.strides[d], y.strides[d], to.strides[d]) for d in others] or [(1, 0, 0, 0)], 2)
        own = (x.shape[dim], x.strides[dim], y.strides[dim], to.strides[dim])
        shape, xs, ys, ts = zip(*rows, own, strict=True)
        w.add("softmax", shape, x.spot, xs, y.spot, ys, back, logarithms, to.spot, ts, w.scratch(3 * own[0]))

    return rule


def _class_sizes(w: Writer, x: Any) -> tuple[int, int, int]:
    """The sizes of (examples, classes, the rest), for a tensor (examples, classes, ...)."""
    shape = w.dense(x).shape
    if len(shape) < 2:
        raise Unsupported("a loss of one example without a batch")
    return shape[0], shape[1], torch.Size(shape[2:]).numel()


def _class_loss(w: Writer, op: Op) -> None:
    x, target, weight, reduction, ignored = op.args
    if weight is not None or reduction not in (1, 2):
        raise Unsupported("a loss by classes with weights, or without a mean")
    loss, counted = w.spot(w.out(op, 0)), w.out(op, 1)
    spare = w.scratch(1) if counted is None else w.spot(counted)
    sizes = _class_sizes(w, x)
    w.add("class_loss", *sizes, w.spot(x), w.whole_numbers(target), ignored, reduction == 1, loss, spare)


def _class_loss_back(w: Writer, op: Op) -> None:
    dy, x, target, weight, reduction, ignored, counted = op.args
    if weight is not None or reduction not in (1, 2):
        raise Unsupported("a loss by classes with weights, or without a mean")
    sizes, to = _class_sizes(w, x), w.spot(w.out(op))
    w.add(
        "class_loss_back", *sizes, w.spot(dy), w.whole_numbers(target), ignored, reduction == 1, w.spot(counted), to
    )  # fmt: skip


def _embedding(w: Writer, op: Op) -> None:
    table, which = op.args[:2]
    rows, width = w.dense(table).shape
    count = torch.Size(w.layout(which).shape).numel()
    w.add("embedding", count, rows, width, w.spot(table), w.whole_numbers(which), w.spot(w.out(op)))


def _embedding_back(w: Writer, op: Op) -> None:
    dy, which, rows, left_out, by_frequency = op.args
    if by_frequency:
        raise Unsupported("an embedding whose gradient is scaled by frequency")
    to, count = w.dense(w.out(op)), torch.Size(w.layout(which).shape).numel()
    w.add("embedding_back", count, rows, to.shape[1], w.densely(dy), w.whole_numbers(which), left_out, to.spot)


def _heads(w: Writer, ref: Any) -> tuple[Spot, tuple[int, ...]]:
    for found in (w.anywhere, w.view):
        view = found(ref)
        if len(view.shape) < 4 or view.strides[3] == 1 or view.shape[3] == 1:
            return view.spot, view.strides[:3]
    raise Unsupported("attention over tensors whose rows are not dense")


def _made_heads(w: Writer, op: Op, place: int) -> Movable:
    view = w.made(op, place)
    if view.strides[3] != 1 and view.shape[3] != 1:
        raise Unsupported("attention to tensors whose rows are not dense")
    movable = Movable(view, told=3)
    if w.is_kept(view.root):
        w.movable[view.root] = movable
    return movable


def _attention(w: Writer, op: Op, q: Any, k: Any, v: Any, options: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes, scale and whether it is causal."""
    dropout, causal = (*options, *(0.0, False)[len(options) :])[:2]
    batch, heads, queries, width = w.layout(q).shape
    keys, values = w.layout(k).shape[2], w.layout(v).shape
    if dropout or op.kwargs.get("attn_mask") is not None or values != (batch, heads, keys, width):
        raise Unsupported("attention with dropout, a mask or fewer heads of keys")
    scale = op.kwargs.get("scale")
    return batch, heads, queries, keys, width, KnownScalar(1 / sqrt(width) if scale is None else float(scale)), causal


def _attend(w: Writer, op: Op) -> None:
    q, k, v, *options = op.args
    tensors = [_heads(w, ref) for ref in (q, k, v, w.out(op, 0), w.out(op, 1))]
    room = w.scratch(QUERIES * w.layout(k).shape[2])
    w.add("attend", _attention(w, op, q, k, v, options), tensors, room)


def _attend_back(w: Writer, op: Op) -> None:
    dy, q, k, v, _, logarithms, *options = op.args
    tensors = [_heads(w, ref) for ref in (dy, q, k, v, logarithms)]
    made = [_made_heads(w, op, place) for place in range(3)]
    room = w.scratch(2 * QUERIES * w.layout(k).shape[2])
    w.add("attend_back", _attention(w, op, q, k, v, options), tensors, made, room)


LAYERS: Final[dict[Any, Callable[[Writer, Op], None]]] = {
    **dict.fromkeys((aten.nll_loss_forward.default, aten.nll_loss2d_forward.default), _class_loss),
    **dict.fromkeys((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default), _class_loss_back),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_back,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_back,
    aten._softmax.default: _softmax(back=False, logarithms=False),
    aten._softmax_backward_data.default: _softmax(back=True, logarithms=False),
    aten._log_softmax.default: _softmax(back=False, logarithms=True),
    aten._log_softmax_backward_data.default: _softmax(back=True, logarithms=True),
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_back,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attend,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attend_back,
}
