"""A recorded step as a program for our own kernels: the whole local epoch is one call, without PyTorch's operators.

`write_program` translates a tape, at one length of batches, to the instructions of `program.c`. It decides where each
tensor of the step is in memory: tensors that are not needed at the same time share memory. The rules for operators are
in `lowering.py`. A step that has an operator without instructions runs as TorchScript (`emit.py`).
"""

from dataclasses import dataclass
from typing import Any, Final

import torch

from fedavg.engine.emit import Kind
from fedavg.engine.folding import Folding
from fedavg.engine.lowering import lower, lower_flat, readers
from fedavg.engine.tape import Layout, Ref, Tape
from fedavg.engine.writer import NOWHERE, KnownScalar, Spot, Unsupported, Writer

#: The scalars of every program, whose values are arguments of each call.
SCALARS: Final = ("zero", "one", "-lr", "mu", "lr pull", "pull", "-lr (1 + mu)", "lr mu")
#: The flat vectors that follow the tensors of a step among the arrays.
FLAT: Final = ("w", "towards", "drift", "v")
ALIGNED: Final = 64
ARENA: Final = "arena"


@dataclass(frozen=True)
class Program:
    """The words of the instructions; the arrays that they name, in order; constants that follow a call's scalars."""

    code: torch.Tensor
    arrays: tuple[str, ...]
    constants: tuple[float, ...]
    arena_bytes: int
    loss: tuple[int, int]


def write_program(tape: Tape, kind: Kind) -> Program:
    """The instructions of a step on batches of one length. Raises `Unsupported`."""
    writer = Writer(tape, readers(tape))
    lasting = {*tape.inputs, *tape.parameters, *tape.state}
    for name, root in tape.roots.items():
        if name == root and name not in lasting:
            writer.sizes[name] = _bytes(tape.layouts[name])
    folding = Folding(tape)
    steps = lower_flat(writer, kind, folding)
    for op in tape.ops:
        if not folding.folded & set(filter(None, op.outputs)):
            if {tape.roots[name] for name in op.written} & set(tape.inputs):
                raise Unsupported("a step that writes to its batch")
            lower(writer, op)
    writer.make_all()
    steps()
    return _assembled(writer, kind)


def _assembled(writer: Writer, kind: Kind) -> Program:
    tape = writer.tape
    targets = [f"target {i}" for i in range(len(tape.parameters))] if kind.whole or kind.momentum else []
    arrays = (*tape.inputs, *tape.parameters, *tape.state, *targets, *FLAT, ARENA)
    numbers = {name: i for i, name in enumerate(arrays)}
    loss, lines = writer.view(Ref(tape.loss)), writer.settled()
    places, arena = _places(lines, writer.sizes, loss.root)
    constants: dict[float, int] = {}

    def encoded(word: Any) -> list[int]:
        if isinstance(word, Spot):
            if word is NOWHERE:
                return [-1, 0]
            if word.root in places:
                return [numbers[ARENA], places[word.root] + word.offset]
            return [numbers[word.root], word.offset]
        if isinstance(word, KnownScalar):
            return [len(SCALARS) + constants.setdefault(word.value, len(constants))]
        return [SCALARS.index(word)] if isinstance(word, str) else [int(word)]

    code = []
    for number, words in lines:
        body = [value for word in words for value in encoded(word)]
        code += [number, len(body), *body]
    array, offset = encoded(loss.spot)
    return Program(torch.tensor(code), arrays, tuple(constants), arena, (array, offset))


def _places(lines: list[tuple[int, list[Any]]], sizes: dict[str, int], lasts: str) -> tuple[dict[str, int], int]:
    """The offset of each tensor in the arena, in bytes, so that no two that are needed at the same time overlap."""
    spans: dict[str, tuple[int, int]] = {}
    for line, (_, words) in enumerate(lines):
        for word in words:
            if isinstance(word, Spot) and word.root in sizes:
                spans[word.root] = (spans.get(word.root, (line, line))[0], line)
    if lasts in spans:
        spans[lasts] = (spans[lasts][0], len(lines))
    places: dict[str, int] = {}
    live: list[tuple[int, int, str]] = []  # the start and end of each, in order of start
    top = 0
    for root, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
        live = [entry for entry in live if spans[entry[2]][1] >= first]
        size = -(-sizes[root] // ALIGNED) * ALIGNED
        start = 0
        for begins, ends, _ in live:
            if begins - start >= size:
                break
            start = max(start, ends)
        places[root] = start
        live = sorted([*live, (start, start + size, root)])
        top = max(top, start + size)
        assert last >= first
    return places, top


def _bytes(layout: Layout) -> int:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))
    return int(extent * (4 if layout.dtype == torch.bool else layout.dtype.itemsize))  # booleans are float32 here
