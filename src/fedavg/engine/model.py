"""A module whose floating state lives in one flat float32 vector.

The vector holds the trainable parameters, then the floating buffers (batch-norm statistics), each once. Buffers are
therefore averaged like weights. Everything else stays as the task built it: it is never sent, and every client starts
from it. Integer counters, and buffers built with an infinity or NaN, such as a causal mask, are reset for each client;
frozen parameters (`frozen.py`) may not be changed at all.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from threading import RLock
from typing import Final

import torch
from torch import Tensor, nn

from fedavg import seeds
from fedavg.adapters import Adapted, adapted
from fedavg.engine.frozen import Frozen
from fedavg.errors import TaskError
from fedavg.tasks.task import Task

#: PyTorch has one generator for all threads: two modules built at the same time would share its draws.
_DRAWING: Final = RLock()


@dataclass(frozen=True)
class Slot:
    """The place of one named tensor of the module in the flat vector."""

    name: str
    shape: torch.Size
    offset: int
    trainable: bool

    def view(self, vector: Tensor) -> Tensor:
        return vector[self.offset : self.offset + self.shape.numel()].view(self.shape)


class Model:
    """The task's module with its parameters and buffers as views of `vector`, shape (P,)."""

    def __init__(self, task: Task, seed: int, device: str = "cpu", frozen: Mapping[str, Tensor] | None = None) -> None:
        """`frozen` is memory that already holds the frozen parameters; other processes may read it too."""
        self.task = task
        built = _built(task, seed)
        self.module = built.module.train().to(device)
        self.slots = tuple(_slots(self.module, built.constants))
        size = sum(slot.shape.numel() for slot in self.slots)
        self.vector = torch.empty(size, device=device)
        self._adopt_views()
        #: The part of the vector that local steps change, without the buffers: a view.
        self.trainable = self.vector[: sum(slot.shape.numel() for slot in self.slots if slot.trainable)]
        own = {slot.name for slot in self.slots}
        self._buffers = dict(self.module.named_buffers())
        kept = {name: buffer for name, buffer in self._buffers.items() if name not in own}
        constants = {name: kept[name] for name in built.constants if kept[name].is_floating_point()}
        self.frozen = Frozen({name: p for name, p in self.module.named_parameters() if name not in own}, constants)
        if frozen is not None:
            self.frozen.adopt(frozen)
        self._kept = {name: (buffer, buffer.clone()) for name, buffer in kept.items()}

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters, in the order of the vector."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def split(self, trainable: Tensor) -> list[Tensor]:
        """Views of a vector like `trainable`, one in the shape of each parameter."""
        return [slot.view(trainable) for slot in self.slots if slot.trainable]

    def load(self, weights: Tensor) -> None:
        """Start again from `weights`; also resets the buffers that are not in the vector."""
        self.frozen.check()
        self.vector.copy_(weights)
        for tensor, original in self._kept.values():
            tensor.copy_(original)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restores the vector and the other buffers on exit, whatever happens inside."""
        state = [self.vector, *(tensor for tensor, _ in self._kept.values())]
        before = [tensor.clone() for tensor in state]
        try:
            yield
        finally:
            for tensor, value in zip(state, before, strict=True):
                tensor.copy_(value)

    def trained_tensors(self) -> dict[str, Tensor]:
        """The module's tensors by name, as in its `state_dict`, without the frozen ones."""
        named = self.module.state_dict(keep_vars=True).items()
        return {name: tensor.detach().clone() for name, tensor in named if tensor not in self.frozen}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `trained_tensors`. Frozen tensors may be missing, but may not differ."""
        frozen = {n: t for n, t in self.module.state_dict(keep_vars=True).items() if t in self.frozen}
        for name, tensor in frozen.items():
            if name in tensors and not torch.equal(tensor.detach(), tensors[name]):
                raise TaskError(f"'{name}' is frozen, and has other values there than this task builds; expected those")
        trained = {name: tensor for name, tensor in tensors.items() if name not in frozen}
        try:
            found = self.module.load_state_dict(trained, strict=False)
        except RuntimeError as error:
            raise TaskError(str(error)) from None
        if lacking := [name for name in found.missing_keys if name not in frozen]:
            raise TaskError(f"it lacks {', '.join(lacking)}")
        if found.unexpected_keys:
            raise TaskError(f"it has {', '.join(found.unexpected_keys)} besides")

    def check_buffers(self) -> None:
        """After a training step: refuse changes to buffers that would be silently lost."""
        now = dict(self.module.named_buffers())
        for name, buffer in self._buffers.items():
            if now.get(name) is not buffer and not _alike(now.get(name), buffer):
                raise TaskError(
                    f"task '{self.task.name}': training puts another tensor in place of the buffer '{name}'; "
                    f"expected a change of its numbers, as in self.{name.rpartition('.')[2]}.copy_(...)"
                )
            if name in self._kept and buffer.is_floating_point() and not _alike(buffer, self._kept[name][1]):
                raise TaskError(
                    f"task '{self.task.name}': training changes the buffer '{name}', which begins with an infinity or "
                    "NaN, or is frozen with its module: such a change has no mean over clients; expected a finite "
                    "number to begin with, or a part of the task's head"
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
    """The same numbers, where NaN equals NaN."""
    return a is not None and a.shape == b.shape and bool((a.eq(b) | (a.ne(a) & b.ne(b))).all())


def model_sha256(weights: Tensor) -> str:
    """The digest of the flat float32 weights, little-endian."""
    return sha256(weights.numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def build(task: Task, seed: int) -> nn.Module:
    """The task's module with the initial parameters for `seed`; the global generator is left unchanged."""
    return _built(task, seed).module.train()


def _built(task: Task, seed: int) -> Adapted:
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.torch_seed(seed, seeds.NONE, seeds.NONE, "init"))
        try:
            module = task.build()
        except Exception as error:
            raise TaskError(f"task '{task.name}': build() failed: {type(error).__name__}: {error}") from error
        if not isinstance(module, nn.Module):
            raise TaskError(f"task '{task.name}': build() gave {type(module).__name__}; expected a torch.nn.Module")
        for name in task.head:
            _check_part(task, module, name)
        return Adapted(module, frozenset()) if task.adapters is None else adapted(task.adapters, module, task.head)


def _check_part(task: Task, module: nn.Module, name: str) -> None:
    if name not in dict(module.named_modules()):
        parts = ", ".join(dict(module.named_children())) or "none"
        raise TaskError(f"task '{task.name}': head has '{name}', and the module has no such part; it has {parts}")


def _slots(module: nn.Module, constants: frozenset[str]) -> Iterator[Slot]:
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise TaskError("the module has no trainable parameter; expected at least one with requires_grad=True")
    finite = [(n, b) for n, b in module.named_buffers() if b.is_floating_point() and bool(b.isfinite().all())]
    buffers = [(name, b) for name, b in finite if name not in constants]
    offset = 0
    for index, (name, tensor) in enumerate([*trainable, *buffers]):
        if tensor.dtype != torch.float32:
            raise TaskError(f"'{name}' is {tensor.dtype}; expected torch.float32: build the module with .float()")
        yield Slot(name, tensor.shape, offset, trainable=index < len(trainable))
        offset += tensor.numel()
