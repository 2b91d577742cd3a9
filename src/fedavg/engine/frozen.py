"""`Frozen`: the weights of a module that are not trained. They are never sent; processes of a machine may share them.

Frozen weights are identified by a fingerprint: to resume a run, or to take part as a device, it must be the same.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import final

import torch
from torch import Tensor, nn

from fedavg.errors import TaskError


@final
class Frozen:
    """The frozen weights by name; empty for a module that is trained whole.

    Nothing may change them, and `check` detects a change. So they can be in memory that other processes read too.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], constants: Mapping[str, Tensor]) -> None:
        """`constants` are the buffers that belong to the frozen parameters."""
        self._parameters, self._constants = parameters, constants
        self._note_versions()

    def __contains__(self, tensor: Tensor) -> bool:
        return any(tensor is each for each in (*self._parameters.values(), *self._constants.values()))

    def _note_versions(self) -> None:
        self._versions = [parameter._version for parameter in self._parameters.values()]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters only: buffers are small."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    @property
    def numbers(self) -> int:
        return sum(each.numel() for each in (*self._parameters.values(), *self._constants.values()))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of names, shapes and values; empty if nothing is frozen."""
        if not self._parameters and not self._constants:
            return ""
        digest = sha256()
        for name, tensor in sorted([*self._parameters.items(), *self._constants.items()]):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(_bytes_of(tensor).numpy().data)
        return digest.hexdigest()[:32]

    def adopt(self, shared: Mapping[str, Tensor]) -> None:
        """Use the same weights from shared memory, and free the own copy."""
        if list(shared) != list(self._parameters):
            raise TaskError("the task built a module with other frozen weights here; expected the same in each process")
        for name, parameter in self._parameters.items():
            if not torch.equal(parameter.detach(), shared[name]):
                raise TaskError(
                    f"the task built a module with another frozen '{name}' here; expected the same in each process: "
                    "is it drawn from PyTorch's generator, or read from a file that has not changed?"
                )
            parameter.data = shared[name]
        self._note_versions()

    def check(self) -> None:
        """Refuse a module that has written to its frozen parameters, as far as PyTorch can tell."""
        for (name, parameter), version in zip(self._parameters.items(), self._versions, strict=True):
            if parameter._version != version:
                raise _changed(name)

    def checksums(self) -> list[int]:
        """Checksums that almost certainly differ after any change."""
        return [int(part.sum(dtype=torch.int64)) for each in self._parameters.values() for part in _words_of(each)]

    def check_against(self, before: list[int]) -> None:
        """Refuse a module that has written to its frozen parameters since, even behind PyTorch's back (`.data`)."""
        self.check()
        if self.checksums() != before:
            raise _changed("")


def _changed(name: str) -> TaskError:
    which = f"its frozen parameter '{name}'" if name else "a frozen parameter"
    return TaskError(
        f"the module changes {which} while it is trained; expected one that stays: clients share it. What a "
        "module keeps track of is a buffer (register_buffer), which is averaged like weights"
    )


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)


def _words_of(tensor: Tensor) -> Iterator[Tensor]:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(flat) - len(flat) % 4
    yield flat[:whole].view(torch.int32)
    yield flat[whole:]
