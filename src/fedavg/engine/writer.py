"""What a program is written with: places, views of tensors, and the `Writer` that collects instructions.

What an operator becomes is said by rules (`lowering.py`) in these words; `program.py` puts the instructions together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from fedavg.engine.tape import Layout, Op, Ref, Tape

#: In the order of program.c.
INSTRUCTIONS: Final = (
    "product", "pointwise", "sum", "layer_norm", "layer_norm_back", "group_norm", "group_norm_back", "softmax",
    "class_loss", "class_loss_back", "embedding", "embedding_back", "attend", "attend_back", "step_back",
    "convolve", "convolve_back", "kernel_gradient", "max_pool", "max_pool_back", "mean_pool", "mean_pool_back",
)  # fmt: skip


class Unsupported(Exception):
    """An operator, or a form of it, that has no instruction."""


@dataclass(frozen=True)
class Spot:
    """A place in memory: an array, or a tensor of the step, and bytes from its beginning."""

    root: str
    offset: int


NOWHERE: Final = Spot("", 0)


@dataclass(frozen=True)
class KnownScalar:
    """A scalar that is known when the program is written."""

    value: float


@dataclass(frozen=True)
class TensorView:
    """A tensor of float32 as an instruction takes it: strides are in numbers, not bytes."""

    root: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def spot(self) -> Spot:
        return Spot(self.root, 4 * self.offset)

    @property
    def count(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def is_dense(self) -> bool:
        return self.strides == _dense(self.shape) or _squeezed(self) == _squeezed(
            TensorView(self.root, 0, self.shape, _dense(self.shape))
        )


@dataclass
class Writer:
    """Collects instructions for one tape, whose sizes are numbers."""

    tape: Tape
    lines: list[tuple[int, list[Any]]] = field(default_factory=list)
    #: Bytes of each tensor that the step makes, and of scratch.
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, *words: Any) -> None:
        self.lines.append((INSTRUCTIONS.index(name), _flat(words)))

    def scratch(self, numbers: int) -> Spot:
        """Place for so many float32 during the instruction that names it."""
        name = f"scratch {len(self.sizes)}"
        self.sizes[name] = 4 * numbers
        return Spot(name, 0)

    def layout(self, ref: Any) -> Layout:
        if not isinstance(ref, Ref):
            raise Unsupported(f"{ref!r} in place of a tensor")
        return self.tape.layouts[ref.name]

    def view(self, ref: Any) -> TensorView:
        """A tensor of float32."""
        layout = self.layout(ref)
        if layout.dtype != torch.float32:
            raise Unsupported(f"{layout.dtype}")
        return TensorView(self.tape.roots[ref.name], layout.offset, layout.shape, layout.strides)

    def dense(self, ref: Any) -> TensorView:
        view = self.view(ref)
        if not view.is_dense:
            raise Unsupported("a tensor that is not dense")
        return view

    def spot(self, ref: Any) -> Spot:
        """Where a dense tensor of float32 is; nowhere if it is None."""
        return NOWHERE if ref is None else self.dense(ref).spot

    def whole_numbers(self, ref: Any) -> Spot:
        """Where a dense tensor of int64 is."""
        layout = self.layout(ref)
        view = TensorView(self.tape.roots[ref.name], layout.offset, layout.shape, layout.strides)
        if layout.dtype != torch.int64 or not view.is_dense:
            raise Unsupported(f"numbers of {layout.dtype}")
        return Spot(view.root, 8 * layout.offset)

    def out(self, op: Op, place: int = 0) -> Ref | None:
        name = op.outputs[place] if place < len(op.outputs) else None
        return Ref(name) if name else None

    def made(self, op: Op, place: int = 0) -> TensorView:
        """What an operator makes."""
        ref = self.out(op, place)
        if ref is None:
            raise Unsupported("an output that is not asked for")
        return self.view(ref)


def merged(dimensions: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """(size, strides ...) of each dimension: outermost first, neighbours joined where they lie so, `count` of them."""
    if any(dimension[0] == 0 for dimension in dimensions):
        raise Unsupported("an empty tensor")
    ordered = sorted((d for d in dimensions if d[0] != 1), key=lambda d: [-stride for stride in d[1:]])
    merged: list[tuple[int, ...]] = []
    for size, *strides in ordered:
        if merged and all(a == b * size for a, b in zip(merged[-1][1:], strides, strict=True)):
            merged[-1] = (merged[-1][0] * size, *strides)
        else:
            merged.append((size, *strides))
    if len(merged) > count:
        raise Unsupported("too many dimensions")
    width = len(dimensions[0]) if dimensions else count
    return [(1, *[0] * (width - 1))] * (count - len(merged)) + merged


def _flat(words: Sequence[Any]) -> list[Any]:
    return [item for word in words for item in (_flat(word) if isinstance(word, tuple | list) else [word])]


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(torch.Size(shape[d + 1 :]).numel()) for d in range(len(shape)))


def _squeezed(view: TensorView) -> list[tuple[int, int]]:
    """Sizes and strides of the dimensions that have any extent."""
    return [(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size != 1]
