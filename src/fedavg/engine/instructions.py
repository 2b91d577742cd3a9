"""The instructions that most operators are made of: pointwise operations, products and sums."""

from collections.abc import Sequence
from typing import Final

from fedavg.engine.writer import (
    DIMENSIONS,
    NOWHERE,
    POINTWISE,
    KnownScalar,
    Spot,
    TensorView,
    Unsupported,
    Writer,
    merged,
)

#: A known number, or the name of one that is an argument of each call.
Scalar = KnownScalar | str
ONE: Final = KnownScalar(1.0)


def pointwise(
    w: Writer, what: str, to: TensorView, x: TensorView, y: TensorView | None = None, s: Scalar = ONE
) -> None:
    """to = what(x, y, s), with x and y broadcast."""
    y = y or x
    for source in (x, y):
        overlaps = source.root == to.root and (source.offset, source.strides, source.shape) != (
            to.offset, to.strides, to.shape,
        )  # fmt: skip
        if overlaps and what != "fill":
            raise Unsupported("an operator that writes to what it reads in another order")
    rows = [_broadcast(source, to.shape) for source in (x, y)]
    dimensions = merged([*zip(to.shape, to.strides, *rows, strict=True)], DIMENSIONS)
    w.add("pointwise", POINTWISE.index(what), to.spot, x.spot, y.spot, s, *zip(*dimensions, strict=True))


def _broadcast(view: TensorView, shape: Sequence[int]) -> list[int]:
    missing = len(shape) - len(view.shape)
    if missing < 0:
        raise Unsupported("a result of fewer dimensions than its source")
    strides = [0] * missing + [0 if n == 1 else stride for n, stride in zip(view.shape, view.strides, strict=True)]
    if any(n not in (1, wanted) for n, wanted in zip(view.shape, shape[missing:], strict=True)):
        raise Unsupported("shapes that do not match")
    return strides


def product(
    w: Writer,
    to: TensorView,
    a: TensorView,
    b: TensorView,
    alpha: Scalar = ONE,
    beta: Scalar = "zero",
    bias: Spot = NOWHERE,
    added: Spot = NOWHERE,
) -> None:
    """to = alpha a b + beta to + bias, for matrices or batches of matrices.

    `added`, if given, takes the place of `to` on the right, and has the same strides.
    """
    if to.strides[-1] != 1 and to.shape[-1] != 1:
        raise Unsupported("a product whose rows are not dense")
    count = to.shape[0] if len(to.shape) == 3 else 1
    steps = [view.strides[0] if len(view.shape) == 3 else 0 for view in (a, b, to)]
    m, n, k = to.shape[-2], to.shape[-1], a.shape[-1]
    if not (m and n and k and count):
        raise Unsupported("an empty product")
    w.add(
        "product", m, n, k, a.spot, a.strides[-2:], b.spot, b.strides[-2:], to.spot, to.strides[-2], alpha, beta, bias,
        added, count, *steps,
    )  # fmt: skip


def total(w: Writer, to: TensorView, x: TensorView, gone: Sequence[int], alpha: Scalar, beta: Scalar = "zero") -> None:
    """to = alpha (the sum of x over some dimensions) + beta to; `to` has the other dimensions, or these as 1."""
    away = {d % len(x.shape) for d in gone} if x.shape else set()
    kept = [d for d in range(len(x.shape)) if d not in away]
    strides = to.strides if len(to.shape) == len(x.shape) else dict(zip(kept, to.strides, strict=True))
    stays = merged([(x.shape[d], strides[d], x.strides[d]) for d in kept] or [(1, 0, 0)], 3)
    goes = merged([(x.shape[d], x.strides[d]) for d in sorted(away)] or [(1, 0)], 3)
    w.add("sum", to.spot, x.spot, alpha, beta, *zip(*stays, strict=True), *zip(*goes, strict=True))
