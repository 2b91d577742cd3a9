"""A module whose floating state lives in one flat float32 vector.

The vector holds the trainable parameters, then the floating buffers (batch-norm statistics), each once. Buffers are
therefore averaged like weights. Everything else (integer counters, frozen parameters, buffers that are built with an
infinity or NaN, such as a causal mask) stays as the task built it: it never travels, and every client starts from it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn

from fedavg import seeds
from fedavg.errors import TaskError
from fedavg.tasks.task import Task


@dataclass(frozen=True)
class Slot:
    """Where one named tensor of the module stands in the flat vector."""

    name: str
    shape: torch.Size
    offset: int
    trainable: bool

    def view(self, vector: Tensor) -> Tensor:
        return vector[self.offset : self.offset + self.shape.numel()].view(self.shape)


class Model:
    """The task's module with its parameters and buffers as views of `vector`, shape (P,)."""

    def __init__(self, task: Task, seed: int, device: str = "cpu") -> None:
        self.task = task
        self.module = build(task, seed).to(device)
        self.slots = tuple(_slots(self.module))
        size = sum(slot.shape.numel() for slot in self.slots)
        self.vector = torch.empty(size, device=device)
        self._adopt_views()
        #: The part of the vector that local steps change, without the buffers: a view.
        self.trainable = self.vector[: sum(slot.shape.numel() for slot in self.slots if slot.trainable)]
        own = {slot.name for slot in self.slots}
        state = [*self.module.named_parameters(), *self.module.named_buffers()]
        self._kept = {name: (tensor, tensor.detach().clone()) for name, tensor in state if name not in own}
        self._buffers = dict(self.module.named_buffers())

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters, in the order of the vector."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def split(self, trainable: Tensor) -> list[Tensor]:
        """A vector like `trainable` as views, one shaped like each parameter."""
        return [slot.view(trainable) for slot in self.slots if slot.trainable]

    def load(self, weights: Tensor) -> None:
        """Start again from `weights`: also puts back what is not in the vector."""
        self.vector.copy_(weights)
        for tensor, original in self._kept.values():
            tensor.detach().copy_(original)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Whatever happens inside, the vector and the rest of the state are afterwards as they were."""
        state = [self.vector, *(tensor.detach() for tensor, _ in self._kept.values())]
        before = [tensor.clone() for tensor in state]
        try:
            yield
        finally:
            for tensor, value in zip(state, before, strict=True):
                tensor.copy_(value)

    def check_buffers(self) -> None:
        """After a step of training: refuse changes of buffers that would be lost without a word."""
        now = dict(self.module.named_buffers())
        for name, buffer in self._buffers.items():
            if now.get(name) is not buffer and not _alike(now.get(name), buffer):
                raise TaskError(
                    f"task '{self.task.name}': training puts another tensor in the place of the buffer '{name}'; "
                    f"expected a change of its numbers, as in self.{name.rpartition('.')[2]}.copy_(...)"
                )
            if name in self._kept and buffer.is_floating_point() and not _alike(buffer, self._kept[name][1]):
                raise TaskError(
                    f"task '{self.task.name}': training changes the buffer '{name}', which begins with an infinity or "
                    "NaN: such a change has no mean over clients; expected a finite number to begin with"
                )

    def _adopt_views(self) -> None:
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for slot in self.slots:
            view = slot.view(self.vector)
            view.copy_(tensors[slot.name].detach())
            if slot.trainable:
                tensors[slot.name].data = view
            else:
                owner, _, leaf = slot.name.rpartition(".")
                self.module.get_submodule(owner)._buffers[leaf] = view


def _alike(a: Tensor | None, b: Tensor) -> bool:
    """The same numbers, where NaN is NaN."""
    return a is not None and a.shape == b.shape and bool((a.eq(b) | (a.ne(a) & b.ne(b))).all())


def model_sha256(weights: Tensor) -> str:
    """The digest of the flat float32 weights, little-endian."""
    return sha256(weights.numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def build(task: Task, seed: int) -> nn.Module:
    """The task's module with the initial parameters that belong to `seed`; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.torch_seed(seed, seeds.NONE, seeds.NONE, "init"))
        try:
            module = task.build()
        except Exception as error:
            raise TaskError(f"task '{task.name}': build() failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise TaskError(f"task '{task.name}': build() gave {type(module).__name__}; expected a torch.nn.Module")
    return module.train()


def _slots(module: nn.Module) -> Iterator[Slot]:
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise TaskError("the module has no trainable parameter; expected at least one with requires_grad=True")
    buffers = [(name, b) for name, b in module.named_buffers() if b.is_floating_point() and bool(b.isfinite().all())]
    offset = 0
    for index, (name, tensor) in enumerate([*trainable, *buffers]):
        if tensor.dtype != torch.float32:
            raise TaskError(f"'{name}' is {tensor.dtype}; expected torch.float32: build the module with .float()")
        yield Slot(name, tensor.shape, offset, trainable=index < len(trainable))
        offset += tensor.numel()
