"""How each operator is translated to a program (`program.py`), and what is done with the gradients."""

from collections.abc import Callable
from typing import Any, Final

import torch

from fedavg.engine.dense import ROWS_BACKWARD
from fedavg.engine.emit import Kind
from fedavg.engine.folding import Folding
from fedavg.engine.instructions import ONE, Scalar, pointwise, product, total
from fedavg.engine.layer_rules import LAYERS
from fedavg.engine.loss_rules import LOSSES
from fedavg.engine.plane_rules import PLANES
from fedavg.engine.recurrence_rules import LSTM, copy_numbers
from fedavg.engine.tape import Op, Ref, Tape
from fedavg.engine.window_rules import WINDOWS
from fedavg.engine.writer import NOWHERE, KnownScalar, PendingProduct, Spot, TensorView, Unsupported, Writer, roots_read

aten = torch.ops.aten
#: Operators that are only views of the same memory.
VIEWS: Final = {
    aten.t.default, aten.transpose.int, aten.view.default, aten._unsafe_view.default, aten.permute.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.select.int,
    aten.slice.Tensor, aten.expand.default, aten.as_strided.default, aten.as_strided_.default, aten.alias.default,
    aten.detach.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten._reshape_alias.default,
    aten.chunk.default,
}  # fmt: skip


def lower(writer: Writer, op: Op) -> None:
    """Write the instructions of an operator."""
    if _is_view(writer.tape, op):
        return
    rule = RULES.get(op.func)
    if rule is None:
        raise Unsupported(f"{op.func}")
    if op.written:
        writer.make_all()
    rule(writer, op)
    writer.forget(op)


def readers(tape: Tape) -> dict[str, list[Op | None]]:
    """The operators that read the memory of each tensor; None stands for the caller, which reads loss and gradients."""
    found: dict[str, list[Op | None]] = {}
    for op in tape.ops:
        if not _is_view(tape, op):
            for root in roots_read(tape, op):
                found.setdefault(root, []).append(op)
    for name in (tape.loss, *filter(None, tape.gradients)):
        found.setdefault(tape.roots[name], []).append(None)
    return found


def _is_view(tape: Tape, op: Op) -> bool:
    if op.func not in VIEWS:
        return False
    root = tape.roots[op.args[0].name]
    return all(tape.roots[name] == root for name in op.outputs if name)


def lower_flat(w: Writer, kind: Kind, folding: Folding) -> Callable[[], None]:
    """Decides what is done with each gradient; returns the function that writes it, to call at the end of the step."""
    tape = w.tape
    given = [(place, name) for place, name in enumerate(tape.gradients) if name]
    products = {name: found for _, name in given if (found := folding.product(name))}
    sums = {name: m for place, name in given if (m := folding.row_sum(tape.parameters[place], name))}
    for name in sums:
        folding.fold_row_sum(name)
    scales: tuple[Scalar, Scalar] = ("-lr", "one")
    if kind.whole or kind.momentum:
        scales = (ONE, "zero" if kind.whole else "mu")

    def write() -> None:
        _before(w, kind)
        for place, name in given:
            parameter = w.view(Ref(tape.parameters[place]))
            to = parameter
            if kind.whole or kind.momentum:
                to = TensorView(f"target {place}", 0, parameter.shape, parameter.strides)
            if name in products:
                a, b = w.view(Ref(products[name].a)), w.view(Ref(products[name].b))
                product(w, to, *((_turned(b), _turned(a)) if products[name].turned else (a, b)), *scales)
            elif name in sums:
                total(w, to, w.view(Ref(sums[name])), [0], *scales)
            elif kind.whole:
                pointwise(w, "copy", to, w.view(Ref(name)))
            elif kind.momentum:
                pointwise(w, "scaled_add", to, to, w.view(Ref(name)), "mu")
            else:
                pointwise(w, "add", to, to, w.view(Ref(name)), "-lr")
        _after(w, kind)

    return write


def _turned(view: TensorView) -> TensorView:
    return TensorView(view.root, view.offset, view.shape[::-1], view.strides[::-1])


def _vector(w: Writer, name: str) -> TensorView:
    size = sum(w.view(Ref(parameter)).count for parameter in w.tape.parameters)
    return TensorView(name, 0, (size,), (1,))


def _before(w: Writer, kind: Kind) -> None:
    """Like `emit._before`."""
    if kind.nesterov:
        velocity = _vector(w, "v")
        w.sizes["earlier"] = 4 * velocity.count
        pointwise(w, "copy", _vector(w, "earlier"), velocity)
    elif kind.pulled and not kind.momentum:
        weights = _vector(w, "w")
        pointwise(w, "lerp", weights, weights, _vector(w, "towards"), "lr pull")


def _after(w: Writer, kind: Kind) -> None:
    """Like `emit._after`."""
    weights, velocity = _vector(w, "w"), _vector(w, "v")
    drifting = weights if not kind.momentum else velocity
    if kind.momentum and kind.pulled:
        pointwise(w, "add", velocity, velocity, weights, "pull")
    if kind.drifted:
        pointwise(w, "add", drifting, drifting, _vector(w, "drift"), ONE if kind.momentum else "-lr")
    if kind.momentum:
        pointwise(w, "add", weights, weights, velocity, "-lr (1 + mu)" if kind.nesterov else "-lr")
    if kind.nesterov:
        pointwise(w, "add", weights, weights, _vector(w, "earlier"), "lr mu")


def _unary(what: str) -> Callable[[Writer, Op], None]:
    return lambda w, op: pointwise(w, what, w.made(op), w.view(op.args[0]))


def _gradient(what: str) -> Callable[[Writer, Op], None]:
    """The rule for a gradient that is made from the gradient of the result and one more tensor."""
    return lambda w, op: pointwise(w, what, w.made(op), w.view(op.args[0]), w.view(op.args[1]))


def _add(sign: float) -> Callable[[Writer, Op], None]:
    def rule(w: Writer, op: Op) -> None:
        x, other = op.args[:2]
        alpha = sign * float(op.kwargs.get("alpha", op.args[2] if len(op.args) > 2 else 1))
        if isinstance(other, Ref):
            if alpha == 1 and not op.written and (w.unite(w.made(op), (x, other)) or _product_and(w, op)):
                return
            pointwise(w, "add", w.made(op), w.view(x), w.view(other), KnownScalar(alpha))
        else:
            pointwise(w, "shift", w.made(op), w.view(x), s=KnownScalar(alpha * float(other)))

    return rule


def _multiply(w: Writer, op: Op) -> None:
    x, other = op.args
    if isinstance(other, Ref):
        pointwise(w, "multiply", w.made(op), w.view(x), w.view(other))
    else:
        pointwise(w, "scale", w.made(op), w.view(x), s=KnownScalar(float(other)))


def _divide(w: Writer, op: Op) -> None:
    x, other = op.args
    if isinstance(other, Ref):
        pointwise(w, "divide", w.made(op), w.view(x), w.view(other))
    else:
        pointwise(w, "scale", w.made(op), w.view(x), s=KnownScalar(1 / float(other)))


def _threshold_back(w: Writer, op: Op) -> None:
    dy, x, limit = op.args
    pointwise(w, "threshold_back", w.made(op), w.view(dy), w.view(x), KnownScalar(float(limit)))


def _gelu(w: Writer, op: Op) -> None:
    back = op.func is aten.gelu_backward.default
    what = "gelu_tanh" if op.kwargs.get("approximate", "none") == "tanh" else "gelu"
    second = w.view(op.args[1]) if back else None
    pointwise(w, what + "_back" * back, w.made(op), w.view(op.args[0]), second)


def _fill(value: float | None) -> Callable[[Writer, Op], None]:
    def rule(w: Writer, op: Op) -> None:
        to, number = w.made(op), op.args[1] if value is None else value
        if isinstance(number, Ref):
            raise Unsupported("a fill by a tensor")
        pointwise(w, "fill", to, to, s=KnownScalar(float(number)))

    return rule


def _copy_into(w: Writer, op: Op) -> None:
    pointwise(w, "copy", w.view(op.args[0]), w.view(op.args[1]))


def _copy(w: Writer, op: Op) -> None:
    if w.layout(op.args[0]).dtype == torch.int64:
        copy_numbers(w, op)
        return
    to = w.made(op)
    w.assemble(to, [(to, op.args[0])])


def _select_back(w: Writer, op: Op) -> None:
    to, (dy, _, dim, index) = w.made(op), op.args
    w.assemble(to, [(_selected(to, dim, index), dy)])


def _stack(w: Writer, op: Op) -> None:
    to, dim = w.made(op), op.args[1] if len(op.args) > 1 else 0
    w.assemble(to, [(_selected(to, dim, index), ref) for index, ref in enumerate(op.args[0])])


def _selected(view: TensorView, dim: int, index: int) -> TensorView:
    dim = dim % len(view.shape)
    start = view.offset + index % view.shape[dim] * view.strides[dim]
    shape, strides = ((*sizes[:dim], *sizes[dim + 1 :]) for sizes in (view.shape, view.strides))
    return TensorView(view.root, start, shape, strides)


def _slice_back(w: Writer, op: Op) -> None:
    to, (ref, _, dim, start, _, step) = w.made(op), op.args
    shape, dim = w.layout(ref).shape, dim % len(to.shape)
    start = min(max(start + to.shape[dim] if start < 0 else start, 0), to.shape[dim])
    strides = tuple(stride * (step if d == dim else 1) for d, stride in enumerate(to.strides))
    w.assemble(to, [(TensorView(to.root, to.offset + start * to.strides[dim], shape, strides), ref)])


def _from(w: Writer, op: Op) -> None:
    """A number minus a tensor."""
    x, number = op.args[:2]
    if isinstance(number, Ref) or len(op.args) > 2 or op.kwargs:
        raise Unsupported("a difference from a tensor")
    to = w.made(op)
    pointwise(w, "scale", to, w.view(x), s=KnownScalar(-1.0))
    pointwise(w, "shift", to, to, s=KnownScalar(float(number)))


def _join(w: Writer, op: Op) -> None:
    to, start, parts = w.made(op), 0, []
    dim = (op.args[1] if len(op.args) > 1 else 0) % len(to.shape)
    for ref in op.args[0]:
        shape = w.layout(ref).shape
        parts.append((TensorView(to.root, to.offset + start * to.strides[dim], shape, to.strides), ref))
        start += shape[dim]
    w.assemble(to, parts)


def _sum(w: Writer, op: Op) -> None:
    x = w.view(op.args[0])
    gone = op.args[1] if len(op.args) > 1 and op.args[1] else range(len(x.shape))
    mean = op.func in (aten.mean.dim, aten.mean.default)
    count = torch.Size([x.shape[d] for d in gone]).numel()
    total(w, w.made(op), x, gone, KnownScalar(1 / count if mean else 1.0))


def _dense(w: Writer, op: Op) -> None:
    x, weight, bias = op.args
    product(w, w.made(op), w.view(x), _turned(w.view(weight)), bias=w.spot(bias))


def _dense_step(w: Writer, op: Op) -> None:
    """The gradient of a large layer's input, and the step of its weight."""
    dy, x, weight = map(w.dense, op.args[:3])
    dx = w.made(op)
    if dy.shape[0] > ROWS_BACKWARD:
        product(w, dx, dy, weight)
        product(w, weight, _turned(dy), x, "-lr", "one")
        return
    step = TensorView(f"step of {op.args[2].name}", 0, dy.shape, dy.strides)
    w.sizes[step.root] = 4 * dy.count
    pointwise(w, "scale", step, dy, s="-lr")
    w.add("step_back", *x.shape, dy.shape[1], dy.spot, step.spot, x.spot, weight.spot, dx.spot)


def _mm(w: Writer, op: Op) -> None:
    _product_later(w, op, w.view(op.args[0]), w.view(op.args[1]), NOWHERE)


def _product_later(w: Writer, op: Op, a: TensorView, b: TensorView, bias: Spot) -> None:
    """a b + bias: now, or together with the sum if it is one side of a sum."""
    to = w.made(op)
    waits = [reader and reader.func for reader in w.readers.get(to.root, [])] == [aten.add.Tensor]
    if not waits or len(to.shape) != 2 or not w.is_kept(to.root) or w.written & {a.root, b.root}:
        product(w, to, a, b, bias=bias)
        return
    w.products[to.root] = PendingProduct(to, a, b, bias)
    w.later[to.root] = lambda: product(w, to, a, b, bias=w.products.pop(to.root).bias)


def _product_and(w: Writer, op: Op) -> bool:
    """Write a sum as a product plus something, if possible; returns whether it was."""
    to = w.made(op)
    for ref, other in (op.args[1::-1], op.args[:2]):
        x, y = w.unmade(ref), w.unmade(other)
        found = w.products.get(x.root)
        if found is None or not (x.is_dense and to.is_dense and x.count == found.to.count == to.count):
            continue
        is_bias = found.bias is NOWHERE and (y.shape, y.strides) == (found.to.shape[1:], (1,)) == (to.shape[-1:], (1,))
        if not is_bias and not (y.is_dense and y.shape == to.shape):
            continue
        y = w.view(other)
        del w.products[x.root], w.later[x.root]
        matrix = TensorView(to.root, to.offset, found.to.shape, found.to.strides)
        if is_bias:
            product(w, matrix, found.a, found.b, bias=y.spot)
        else:
            product(w, matrix, found.a, found.b, beta="one", bias=found.bias, added=y.spot)
        return True
    return False


def _addmm(w: Writer, op: Op) -> None:
    bias, a, b = map(w.view, op.args[:3])
    to, alpha, beta = w.made(op), float(op.kwargs.get("alpha", 1)), float(op.kwargs.get("beta", 1))
    if len(bias.shape) == 1 and bias.strides == (1,) and alpha == beta == 1 and bias.shape[0] == to.shape[-1]:
        _product_later(w, op, a, b, bias.spot)
        return
    pointwise(w, "scale", to, bias, s=KnownScalar(beta))
    product(w, to, a, b, KnownScalar(alpha), "one")


RULES: Final[dict[Any, Callable[[Writer, Op], None]]] = {
    **LAYERS,
    **LOSSES,
    **LSTM,
    **PLANES,
    **WINDOWS,
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _mm),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), _addmm),
    **dict.fromkeys((aten.add.Tensor, aten.add_.Tensor), _add(1.0)),
    **dict.fromkeys((aten.sub.Tensor, aten.sub_.Tensor), _add(-1.0)),
    **dict.fromkeys((aten.mul.Tensor, aten.mul_.Tensor, aten.mul.Scalar), _multiply),
    **dict.fromkeys((aten.div.Tensor, aten.div_.Tensor, aten.div.Scalar), _divide),
    **dict.fromkeys((aten.relu.default, aten.relu_.default), _unary("relu")),
    **dict.fromkeys((aten.clone.default, aten.view.default, aten._unsafe_view.default), _copy),
    **dict.fromkeys((aten.gelu.default, aten.gelu_backward.default), _gelu),
    **dict.fromkeys((aten.zeros_like.default, aten.new_zeros.default, aten.zeros.default), _fill(0.0)),
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default), _sum),
    aten.neg.default: lambda w, op: pointwise(w, "scale", w.made(op), w.view(op.args[0]), s=KnownScalar(-1.0)),
    aten.threshold_backward.default: _threshold_back,
    aten.tanh.default: _unary("tanh"),
    aten.tanh_backward.default: _gradient("tanh_back"),
    aten.sigmoid.default: _unary("sigmoid"),
    aten.sigmoid_backward.default: _gradient("sigmoid_back"),
    aten.silu.default: _unary("silu"),
    aten.silu_backward.default: _gradient("silu_back"),
    aten.exp.default: _unary("exponential"),
    aten.sqrt.default: _unary("root"),
    torch.ops.fedavg.dense.default: _dense,
    torch.ops.fedavg.dense_step.default: _dense_step,
    aten.copy_.default: _copy_into,
    aten.ones_like.default: _fill(1.0),
    aten.fill_.Scalar: _fill(None),
    aten.full_like.default: _fill(None),
    aten.select_backward.default: _select_back,
    aten.slice_backward.default: _slice_back,
    aten.rsub.Scalar: _from,
    aten.cat.default: _join,
    aten.stack.default: _stack,
}
