"""`Adapters`: how a module gets a few weights that are trained while its own stay frozen.

A module is adapted once, when it is built, and is an ordinary module with frozen parameters from then on: what is
frozen never travels (`engine/model.py`). Knows nothing of clients or rounds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedavg.errors import TaskError
from fedavg.specs import Pluggable


class Adapters(Pluggable, ABC):
    """A way to adapt a module. Your own is a frozen dataclass of this class:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class BiasOnly(Adapters):
    ...     def adapt(self, module, head):
    ...         for name, parameter in module.named_parameters():
    ...             parameter.requires_grad_(name.endswith("bias"))
    ...         return module
    >>> net = adapted(BiasOnly(), nn.Linear(3, 2), []).module
    >>> [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    ['bias']
    """

    kind = "adapters"

    @classmethod
    def registry(cls) -> Mapping[str, type["Adapters"]]:
        from fedavg.adapters import ADAPTERS

        return ADAPTERS

    @abstractmethod
    def adapt(self, module: nn.Module, head: Sequence[str]) -> nn.Module:
        """The module with adapters. All its parameters are frozen; those to train are marked `requires_grad`.

        The submodules that `head` names need none: they are trained whole. Random draws come from PyTorch's
        generator, which is seeded.
        """


@dataclass(frozen=True)
class Adapted:
    """A module with adapters, and the names of its own buffers: they stay as they are, like its frozen parameters."""

    module: nn.Module
    constants: frozenset[str]


def adapted(adapters: Adapters, module: nn.Module, head: Sequence[str]) -> Adapted:
    """The module with adapters and a trained head; all else is frozen, running statistics included."""
    module.requires_grad_(False)
    heads = [module.get_submodule(name) for name in head]
    trained = {id(part) for each in heads for part in each.modules()}
    _hold_statistics(part for part in module.modules() if id(part) not in trained)
    in_head = {id(buffer) for each in heads for buffer in each.buffers()}
    own = {id(buffer) for buffer in module.buffers()} - in_head
    module = adapters.adapt(module, head)
    if not isinstance(module, nn.Module):
        raise TaskError(f"adapters '{adapters}': adapt() gave {type(module).__name__}; expected the module")
    for each in heads:
        each.requires_grad_(True)
    return Adapted(module, frozenset(name for name, buffer in module.named_buffers() if id(buffer) in own))


def _hold_statistics(layers: Iterable[nn.Module]) -> None:
    """Frozen norms keep to the statistics that they came with, in training too: else the two would not fit."""
    for layer in layers:
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            layer.eval()
            layer.train = partial(_as_it_is, layer)  # type: ignore[assignment, method-assign]


def _as_it_is(layer: nn.Module, mode: bool = True) -> nn.Module:
    return layer
