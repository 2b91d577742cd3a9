"""Records one training step as a flat list of ATen operators, by watching the plain path take it.

A tensor is identified by its address and its geometry; all tensors of the step are kept alive while it is recorded, so
no two of them are confused. What a replay could not repeat for other data (control flow that depends on values, or
shapes that do) raises `Untraceable`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedavg import trees
from fedavg.engine import plain
from fedavg.engine.model import Model
from fedavg.types import Examples


class Untraceable(Exception):
    """The module cannot be turned into a fixed graph; the reason is in the message."""


class LooksAtData(Untraceable):
    """What the module does depends on the values of its data."""


@dataclass(frozen=True)
class Ref:
    """A tensor of the tape, by name."""

    name: str


@dataclass(frozen=True)
class Op:
    """One operator call. Tensors among the arguments are `Ref`s; `outputs` has None where no tensor was returned."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str | None, ...]

    @property
    def refs(self) -> Iterator[str]:
        """The names of all tensors among the arguments."""
        return _refs((*self.args, *self.kwargs.values()))

    @property
    def written(self) -> set[str]:
        """The names that this operator writes to in place."""
        arguments = zip(self.func._schema.arguments, self.args, strict=False)
        return {
            name for spec, arg in arguments if spec.alias_info and spec.alias_info.is_write for name in _refs((arg,))
        }

    @property
    def draws(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.func.tags


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a tensor are in memory, relative to the beginning of the tensor that it is a view of.

    On a tape for all lengths of batches (`lengths.py`), numbers that grow with the batch are `PerRow`.
    """

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype


@dataclass(frozen=True)
class Tape:
    """From `inputs` (the tensors of a batch), parameters and `state` (the rest of the module's, then constants) to the
    loss and the gradients of the parameters."""

    ops: list[Op]
    inputs: list[str]
    parameters: list[str]
    state: list[str]
    state_tensors: list[Tensor]
    loss: str
    gradients: list[str | None]
    #: For each name, the name of the tensor whose memory it is a view of; itself if it is not a view.
    roots: dict[str, str]
    #: For each name, a tensor of its shape, type and layout, without data.
    forms: dict[str, Tensor]
    layouts: dict[str, Layout]


def record(model: Model, batch: Examples, kernels: AbstractContextManager[Any] | None = None) -> Tape:
    """Take the gradients of a batch, whose tensors are named x0, x1, ... and y0, y1, ... on the tape. This changes the
    model's buffers.

    `kernels` may replace PyTorch's operators while the step is taken.
    """
    parameters = {f"p{i}": p.detach() for i, p in enumerate(model.parameters.values())}
    others = [t for n, t in model.module.named_parameters() if n not in model.parameters]
    state = {f"s{i}": t.detach() for i, t in enumerate([*others, *model.module.buffers()])}
    batch = _apart(batch)
    inputs = {
        f"{letter}{i}": leaf
        for letter, tree in (("x", batch.x), ("y", batch.y))
        for i, leaf in enumerate(trees.leaves(tree))
    }
    recorder = _TapeRecorder(parameters | state | inputs)
    try:
        with recorder, kernels or nullcontext():
            loss, grads = plain.gradients(model, batch)
    except Untraceable:
        raise
    except Exception as error:  # whatever fails while recording, the plain path can still run the module
        raise Untraceable(f"{type(error).__name__}: {error}") from error
    constants = recorder.constants
    names = [recorder.name_of(tensor) for tensor in (loss, *grads)]
    wanted = {name for name in names if name}
    lasting = {*parameters, *state, *constants, *inputs}
    return Tape(
        ops=_needed(recorder.ops, wanted, lasting, recorder.roots),
        inputs=list(inputs),
        parameters=list(parameters),
        state=[*state, *constants],
        state_tensors=[*state.values(), *constants.values()],
        loss=str(names[0]),
        gradients=names[1:],
        roots=recorder.roots,
        forms=recorder.forms,
        layouts=recorder.layouts,
    )


@contextmanager
def as_a_compiler() -> Iterator[None]:
    """Inside, `torch.compiler.is_compiling()` is true: libraries then skip shortcuts that depend on the values of their
    data, such as a check whether a mask masks anything, and take the path that is right for all values."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _apart(batch: Examples) -> Examples:
    """Copies a tensor that is both input and target, as for an autoencoder: tensors are identified by address."""
    seen: set[Any] = set()

    def own(leaf: Tensor) -> Tensor:
        again = _key(leaf) in seen
        seen.add(_key(leaf))
        return leaf.clone() if again else leaf

    return Examples(trees.changed(batch.x, own), trees.changed(batch.y, own))


class _TapeRecorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here uses torch.compile; the default would import all of it: a second and 80 MB per process."""
        return False

    def __init__(self, inputs: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.constants: dict[str, Tensor] = {}
        self.roots: dict[str, str] = {}
        self.forms: dict[str, Tensor] = {}
        self.layouts: dict[str, Layout] = {}
        self._names: dict[Any, str] = {}
        self._storages: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        self._alive: list[Tensor] = []
        for name, tensor in inputs.items():
            self._keep(name, tensor, root=name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _depends_on_values(func, args):
            raise LooksAtData(f"it looks at the values of its data ({func})")
        named_args, named_kwargs = self._named(args), self._named(kwargs)
        result = func(*args, **kwargs)
        outputs = result if isinstance(result, tuple | list) else (result,)
        known = [self.name_of(out) for out in outputs]
        names = tuple(self._output(out, named_args) for out in outputs)
        op = Op(func, named_args, named_kwargs, names)
        if not all(known) or op.written or op.draws:  # an operator that returns its argument (detach) needs no replay
            self.ops.append(op)
        return result

    def name_of(self, tensor: Any) -> str | None:
        return self._names.get(_key(tensor)) if isinstance(tensor, Tensor) else None

    def _output(self, tensor: Any, args: Any) -> str | None:
        if not isinstance(tensor, Tensor):
            return None
        name = self.name_of(tensor)
        if name is None:
            name = f"v{len(self._alive)}"
            storage = tensor.untyped_storage().data_ptr()
            viewed = [ref for ref in _refs(args) if self._storages[ref] == storage]
            self._keep(name, tensor, root=self.roots[viewed[0]] if viewed else name)
        return name

    def _keep(self, name: str, tensor: Tensor, root: str) -> None:
        self._names[_key(tensor)] = name
        self._storages[name] = tensor.untyped_storage().data_ptr()
        self.roots[name] = root
        self._starts[name] = int(tensor.storage_offset())
        offset = self._starts[name] - self._starts[root]
        self.layouts[name] = Layout(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype)
        self.forms[name] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        self._alive.append(tensor)

    def _named(self, value: Any) -> Any:
        """The same arguments with each tensor replaced by its name; an unknown tensor is a constant of the module."""
        if isinstance(value, Tensor):
            name = self.name_of(value)
            if name is None:
                name = f"c{len(self.constants)}"
                self.constants[name] = value.detach()
                self._keep(name, value, root=name)
            return Ref(name)
        if isinstance(value, tuple | list):
            return type(value)(self._named(item) for item in value)
        if isinstance(value, dict):
            return {key: self._named(item) for key, item in value.items()}
        return value


def _depends_on_values(func: Any, args: Any) -> bool:
    """Whether Python values or shapes depend on the data; selecting rows by index does not count."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def _key(tensor: Tensor) -> tuple[Any, ...]:
    place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*place, tensor.shape, tensor.stride(), tensor.dtype)


def _refs(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, tuple | list):
            yield from _refs(value)


def _needed(ops: list[Op], wanted: set[str], lasting: set[str], roots: dict[str, str]) -> list[Op]:
    """Removes operators whose results are not needed. It keeps those that draw random numbers, and those that write to
    tensors that outlast the step or are wanted."""
    kept = []
    read = {roots[name] for name in wanted}
    for op in reversed(ops):
        written = {roots[name] for name in op.written}
        made = {name for name in op.outputs if name}
        if op.draws or written & (read | lasting) or wanted & made:
            wanted |= set(op.refs)
            read |= {roots[name] for name in op.refs}
            kept.append(op)
    return kept[::-1]
