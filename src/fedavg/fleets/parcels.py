"""What a process that was not forked receives at its start: Python objects, with their arrays in shared memory.

Objects are pickled by a process for children that it starts itself; nothing comes from a network or a file. Opening a
parcel copies no arrays or tensors: all processes read the same memory.
"""

import pickle
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor

from fedavg.errors import FleetError
from fedavg.fleets.sharing import shared_bytes

#: Arrays of at least this size are stored outside the pickle, each at a multiple of `ALIGNED`.
LARGE_BYTES: Final = 1 << 12
ALIGNED: Final = 64
#: What pickle raises for objects that it cannot write or read.
_FAILURES: Final = (pickle.PickleError, AttributeError, TypeError, ImportError, ValueError, RecursionError)


class Unsendable(FleetError):
    """Something that a worker needs cannot be sent to it."""


@dataclass(frozen=True)
class Parcel:
    """Shared memory, and the place and size of the pickle and of each array in it."""

    memory: Any
    places: tuple[tuple[int, int], ...]


def pack(value: object, method: str) -> Parcel:
    """A parcel for processes that start by `method`."""
    stream, arrays = _written(value)
    pieces = [memoryview(stream), *(array.raw() for array in arrays)]
    places, end = [], 0
    for piece in pieces:
        places.append((end, piece.nbytes))
        end += -(-piece.nbytes // ALIGNED) * ALIGNED
    memory = shared_bytes(end, method)
    whole = memoryview(memory).cast("B")
    for (place, size), piece in zip(places, pieces, strict=True):
        whole[place : place + size] = piece
    return Parcel(memory, tuple(places))


def unpack(parcel: Parcel) -> Any:
    whole = memoryview(parcel.memory).cast("B")
    stream, *arrays = (whole[place : place + size] for place, size in parcel.places)
    try:
        return pickle.loads(stream, buffers=arrays)
    except _FAILURES as error:
        raise Unsendable(f"a worker cannot read what it was sent: {error}. {remedy()}") from None


def why_unsendable(parts: Iterable[tuple[str, object]]) -> str:
    """Which part cannot be sent, and why; empty if each can."""
    for name, part in parts:
        try:
            _written(part)
        except Unsendable as error:
            return f"{name}: {error}"
    return ""


def remedy() -> str:
    return (
        "Expected classes and functions that a new process can import: put them into a file of their own (mine.py), "
        "outside of other functions and without lambda, and import them from there; or, on Linux, start workers by "
        "'fork' (--start-method fork), which need nothing sent"
    )


class _ParcelWriter(pickle.Pickler):
    """Writes tensors as arrays of bytes; refuses objects of a main program that other processes cannot import."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and _is_plain(value):
            flat: Any = value.detach().contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8).numpy()
            return _tensor, (pickle.PickleBuffer(flat), value.dtype, tuple(value.shape))
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__" and not _main_is_importable():
            raise pickle.PicklingError(f"{value.__qualname__} is defined in a notebook or at a prompt")
        return NotImplemented


def _written(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    arrays: list[pickle.PickleBuffer] = []

    def aside(array: pickle.PickleBuffer) -> bool:
        """True if the array stays in the pickle."""
        if array.raw().nbytes < LARGE_BYTES:
            return True
        arrays.append(array)
        return False

    stream = BytesIO()
    try:
        _ParcelWriter(stream, protocol=5, buffer_callback=aside).dump(value)
    except _FAILURES as error:
        raise Unsendable(str(error)) from None
    return stream.getvalue(), arrays


def _is_plain(tensor: Tensor) -> bool:
    dense = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    return dense and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg()


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    numbers = memoryview(memory)
    if not numbers.nbytes:
        return torch.empty(shape, dtype=dtype)
    writable = bytearray(numbers) if numbers.readonly else numbers
    return torch.frombuffer(writable, dtype=dtype).view(shape)


def _main_is_importable() -> bool:
    """Whether a new process can import the main program: a file or a module, but not a notebook or a prompt."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (file is not None and Path(file).is_file())
