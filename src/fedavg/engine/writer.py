"""The tools to write a program: places, views of tensors, and the `Writer` that collects instructions.

Rules (`lowering.py`) translate operators with these tools; `program.py` assembles the instructions. Some tensors are
made only when an instruction needs them: by then they may have turned out to be unnecessary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

import torch

from fedavg.engine.copies import Fragment, disjoint, through
from fedavg.engine.tape import Layout, Op, Ref, Tape

#: In the order of program.c.
INSTRUCTIONS: Final = (
    "product", "pointwise", "sum", "layer_norm", "layer_norm_back", "group_norm", "group_norm_back", "softmax",
    "class_loss", "class_loss_back", "embedding", "embedding_back", "attend", "attend_back", "step_back",
    "convolve", "convolve_back", "kernel_gradient", "max_pool", "max_pool_back", "mean_pool", "mean_pool_back",
    "cross_entropy", "cross_entropy_back", "scan", "scan_back", "equals", "copy_numbers",
)  # fmt: skip
#: In the order of pointwise.h.
POINTWISE: Final = (
    "copy", "add", "multiply", "divide", "scale", "shift", "relu", "threshold_back", "gelu", "gelu_back", "gelu_tanh",
    "gelu_tanh_back", "tanh", "tanh_back", "sigmoid", "sigmoid_back", "silu", "silu_back", "exponential", "root",
    "scaled_add", "lerp", "fill",
)  # fmt: skip
DIMENSIONS: Final = 6


class Unsupported(Exception):
    """An operator, or a form of it, that has no instruction."""


@dataclass(frozen=True)
class Spot:
    """A place in memory: an array or a tensor of the step, and an offset in bytes."""

    root: str
    offset: int


NOWHERE: Final = Spot("", 0)


@dataclass(frozen=True)
class KnownScalar:
    """A scalar known when the program is written."""

    value: float


@dataclass(frozen=True)
class TensorView:
    """A float32 tensor as an instruction takes it: strides are in elements, not bytes."""

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


@dataclass(frozen=True)
class PendingProduct:
    """A product a b + bias that is not made yet."""

    to: TensorView
    a: TensorView
    b: TensorView
    bias: Spot


@dataclass(frozen=True)
class CrossEntropy:
    """A loss over classes that is fused with its softmax, over (examples, dimensions after the classes, classes)."""

    x: TensorView
    target: Any
    ignored: int
    mean: bool
    #: The gradient of the loss.
    dy: Any
    counted: Spot
    #: Where the logarithm of each row's normaliser is stored for the backward pass.
    noted: Spot


@dataclass
class Movable:
    """A tensor that an instruction can make with any strides: it takes the first `told`, the others are 1."""

    view: TensorView
    told: int

    @property
    def words(self) -> list[Any]:
        return [self.view.spot, *self.view.strides[: self.told]]

    def moves(self, to: str, piece: Fragment) -> bool:
        """Make it where a piece of another tensor is to be, if that is all of it and it can."""
        own = [(size, stride, 0) for size, stride in zip(self.view.shape, self.view.strides, strict=True)]
        found = through(self.view.offset - piece.source, own, piece.there)
        if not piece.alone or piece.count != self.view.count or found is None or len(found[1]) != len(own):
            return False
        strides = tuple(stride for _, stride, _ in found[1])
        if any(stride != 1 and size != 1 for size, stride, _ in found[1][self.told :]):
            return False
        self.view = TensorView(to, piece.start + found[0], self.view.shape, strides)
        return True


@dataclass
class Writer:
    """Collects instructions for one tape, whose sizes are numbers."""

    tape: Tape
    #: The operators that read the memory of a tensor, by its root; None is the caller, which reads loss and gradients.
    readers: dict[str, list[Op | None]]
    lines: list[tuple[int, list[Any]]] = field(default_factory=list)
    #: Bytes of each tensor that the step makes, and of scratch.
    sizes: dict[str, int] = field(default_factory=dict)
    #: Functions that make deferred tensors, and for some of these the pieces that they consist of.
    later: dict[str, Callable[[], None]] = field(default_factory=dict)
    pieces: dict[str, list[Fragment]] = field(default_factory=dict)
    products: dict[str, PendingProduct] = field(default_factory=dict)
    #: By the name of the logarithms, which are never made.
    losses: dict[str, CrossEntropy] = field(default_factory=dict)
    #: Tensors that can be made elsewhere.
    movable: dict[str, Movable] = field(default_factory=dict)

    def add(self, name: str, *words: Any) -> None:
        self.lines.append((INSTRUCTIONS.index(name), _flat(words)))

    def settled(self) -> list[tuple[int, list[Any]]]:
        """All instructions, once it is decided where each tensor is made."""
        assert not self.later, "all is made before"
        return [
            (number, [item for word in words for item in (word.words if isinstance(word, Movable) else [word])])
            for number, words in self.lines
        ]

    def scratch(self, numbers: int) -> Spot:
        """Space for this many float32 numbers during the instruction that names it."""
        name = f"scratch {len(self.sizes)}"
        self.sizes[name] = 4 * numbers
        return Spot(name, 0)

    def layout(self, ref: Any) -> Layout:
        if not isinstance(ref, Ref):
            raise Unsupported(f"{ref!r} in place of a tensor")
        return self.tape.layouts[ref.name]

    def view(self, ref: Any) -> TensorView:
        """A float32 tensor, which is made first if it was deferred."""
        view = self.unmade(ref)
        self.make(view.root)
        return view

    def unmade(self, ref: Any) -> TensorView:
        """The same, without making it."""
        return self._typed(ref, torch.float32)

    def anywhere(self, ref: Any) -> TensorView:
        """A float32 tensor for an instruction that takes any strides: a view of the copy's source, if possible."""
        view = self.unmade(ref)
        wanted = [(size, stride, 0) for size, stride in zip(view.shape, view.strides, strict=True)]
        for piece in self.pieces.get(view.root, []):
            found = through(view.offset - piece.start, wanted, piece.dimensions)
            if found and len(found[1]) == len(wanted):
                self._share(view.root)
                strides = tuple(stride for _, stride, _ in found[1])
                return TensorView(piece.root, piece.source + found[0], view.shape, strides)
        return self.view(ref)

    def make(self, root: str) -> None:
        """Write the instructions that make a tensor, if it was deferred."""
        if make := self.later.pop(root, None):
            make()

    def make_all(self) -> None:
        """Make all deferred tensors: something is about to be overwritten."""
        for root in list(self.later):
            self.make(root)

    def forget(self, op: Op) -> None:
        """Drop deferred tensors that only this operator still had to read, if it did without: they are never made."""
        for root in roots_read(self.tape, op):
            self._unread[root] -= 1
            if not self._unread[root] and root in self.later:
                del self.later[root]
                self.pieces.pop(root, None)

    @cached_property
    def _unread(self) -> dict[str, int]:
        """How many operators have yet to read each tensor."""
        return {root: len(readers) for root, readers in self.readers.items()}

    def is_kept(self, root: str) -> bool:
        """Whether the step makes it and never overwrites it, so that it can be read, or made, later."""
        return root in self.sizes and root not in self.written

    @cached_property
    def written(self) -> set[str]:
        return {self.tape.roots[name] for op in self.tape.ops for name in op.written}

    def assemble(self, to: TensorView, parts: Sequence[tuple[TensorView, Any]]) -> None:
        """`to`, a whole tensor, consists of these parts, each at its place, and of zeros elsewhere."""
        pieces = [piece for place, ref in parts for piece in self._pieces(place, ref)]
        self.pieces[to.root], self.later[to.root] = pieces, partial(self._put_together, to.root)
        if not all(map(self.is_kept, (to.root, *(piece.root for piece in pieces)))):
            self.make(to.root)

    def unite(self, to: TensorView, refs: Sequence[Any]) -> bool:
        """Defer a sum of tensors, if each is zero where another is not; returns whether it was deferred."""
        views = [self.unmade(ref) for ref in refs]
        alike = all((view.offset, view.shape, view.strides) == (to.offset, to.shape, to.strides) for view in views)
        if not alike or not all(view.root in self.pieces for view in views) or not self.is_kept(to.root):
            return False
        if not disjoint([piece for view in views for piece in self.pieces[view.root]]):
            return False
        self.pieces[to.root] = [piece for view in views for piece in self._taken(view.root)]
        self.later[to.root] = partial(self._put_together, to.root)
        return True

    def _pieces(self, place: TensorView, ref: Any) -> list[Fragment]:
        """What a place in a tensor consists of, if it is a copy of `ref`."""
        x = self.unmade(ref)
        table = list(zip(x.shape, x.strides, place.strides, strict=True))
        if x.root in self.pieces:
            before = self._taken(x.root)
            found = [through(piece.start - x.offset, piece.dimensions, table) for piece in before]
            if all(found):
                return [
                    replace(piece, start=place.offset + entry[0], dimensions=tuple(entry[1]))
                    for piece, entry in zip(before, found, strict=True)
                    if entry
                ]
        x = self.view(ref)
        alone = len(self.readers.get(x.root, [])) == 1
        dimensions = tuple((size, here, there) for size, there, here in table)
        return [Fragment(place.offset, x.root, x.offset, dimensions, alone)]

    def _taken(self, root: str) -> list[Fragment]:
        """The pieces of a tensor for another one. If it has more readers, sources have too."""
        if len(self.readers.get(root, [])) > 1:
            self._share(root)
        return self.pieces[root]

    def _share(self, root: str) -> None:
        self.pieces[root] = [replace(piece, alone=False) for piece in self.pieces[root]]

    def _put_together(self, root: str) -> None:
        pieces = self.pieces.pop(root)
        whole = TensorView(root, 0, (self.sizes[root] // 4,), (1,))
        complete = sum(piece.count for piece in pieces) == whole.count
        if not complete:
            self._each("fill", whole, whole, KnownScalar(0.0))
        for piece in pieces:
            movable = self.movable.get(piece.root)
            if complete and movable and movable.moves(root, piece):
                continue
            sizes, here, there = zip(*piece.dimensions, strict=True) if piece.dimensions else ((), (), ())
            source = TensorView(piece.root, piece.source, sizes, there)
            self._each("copy", TensorView(root, piece.start, sizes, here), source, KnownScalar(1.0))

    def _each(self, what: str, to: TensorView, x: TensorView, s: KnownScalar) -> None:
        dimensions = merged([*zip(to.shape, to.strides, x.strides, x.strides, strict=True)], DIMENSIONS)
        self.add("pointwise", POINTWISE.index(what), to.spot, x.spot, x.spot, s, *zip(*dimensions, strict=True))

    def dense(self, ref: Any) -> TensorView:
        view = self.view(ref)
        if not view.is_dense:
            raise Unsupported("a tensor that is not dense")
        return view

    def spot(self, ref: Any) -> Spot:
        """Where a dense float32 tensor is; nowhere if it is None."""
        return NOWHERE if ref is None else self.dense(ref).spot

    def densely(self, ref: Any) -> Spot:
        """Where a dense float32 tensor is; if it is not dense, a dense copy."""
        view = self.view(ref)
        if view.is_dense:
            return view.spot
        copy = TensorView(f"dense {len(self.sizes)}", 0, view.shape, _dense(view.shape))
        self.sizes[copy.root] = 4 * view.count
        self._each("copy", copy, view, KnownScalar(1.0))
        return copy.spot

    def whole_numbers(self, ref: Any) -> Spot:
        """Where a dense int64 tensor is."""
        view = self.numbers(ref)
        if not view.is_dense:
            raise Unsupported("whole numbers that are not dense")
        return Spot(view.root, 8 * view.offset)

    def numbers(self, ref: Any) -> TensorView:
        """An int64 tensor: offsets count 8 bytes per number."""
        return self._typed(ref, torch.int64)

    def truths(self, ref: Any) -> TensorView:
        """Booleans, which are float32 in a program."""
        view = self._typed(ref, torch.bool)
        if view.root not in self.sizes:
            raise Unsupported("truth values among the examples")
        return view

    def _typed(self, ref: Any, dtype: torch.dtype) -> TensorView:
        layout = self.layout(ref)
        if layout.dtype != dtype:
            raise Unsupported(f"numbers of {layout.dtype}")
        return TensorView(self.tape.roots[ref.name], layout.offset, layout.shape, layout.strides)

    def out(self, op: Op, place: int = 0) -> Ref | None:
        name = op.outputs[place] if place < len(op.outputs) else None
        return Ref(name) if name else None

    def made(self, op: Op, place: int = 0) -> TensorView:
        """The output of an operator."""
        ref = self.out(op, place)
        if ref is None:
            raise Unsupported("an output that is not asked for")
        return self.view(ref)


def roots_read(tape: Tape, op: Op) -> set[str]:
    """The tensors whose memory an operator reads; a learning rate is not a tensor."""
    return {tape.roots[name] for name in op.refs if name in tape.roots}


def merged(dimensions: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """(size, strides ...) of each dimension, outermost first: contiguous neighbours are joined, to `count` in all."""
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
    """Sizes and strides of the dimensions larger than 1."""
    return [(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size != 1]
