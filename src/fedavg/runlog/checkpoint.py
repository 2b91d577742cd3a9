"""The server's state on disk: a safetensors file per checkpoint. A crash leaves the old one or the new one whole."""

from hashlib import sha256
from json import dumps, loads
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedavg.errors import RunDirError
from fedavg.files import write_atomically
from fedavg.types import State


def model_sha256(weights: torch.Tensor) -> str:
    """The digest of the flat float32 weights, little-endian."""
    return sha256(weights.numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def to_tensors(state: State) -> dict[str, torch.Tensor]:
    """A state as named tensors."""
    own = {f"slot.{name}": slot for name, slot in state.slots.items()}
    others = {f"of {owner}.{name}": slot for owner, slots in state.others.items() for name, slot in slots.items()}
    return {"weights": state.weights, **own, **others}


def from_tensors(tensors: dict[str, torch.Tensor]) -> State:
    slots: dict[str, torch.Tensor] = {}
    others: dict[str, dict[str, torch.Tensor]] = {}
    for full, tensor in tensors.items():
        owner, _, name = full.partition(".")
        if owner == "slot":
            slots[name] = tensor
        elif owner.startswith("of "):
            others.setdefault(owner.removeprefix("of "), {})[name] = tensor
    return State(tensors["weights"], slots, others)


def save_state(path: Path, round: int, state: State, digest: str, row: dict[str, Any] | None = None) -> None:
    """The state after a round, with the round's row: both are there, or neither."""
    tensors = to_tensors(state)
    metadata = {"round": str(round), "plan": digest, "sha256": _content_digest(tensors), "row": dumps(row)}
    write_atomically(path, save(tensors, metadata))


def load_state(path: Path, digest: str) -> tuple[int, State, dict[str, Any] | None]:
    """The round, state and row of a checkpoint of the plan with this digest; a torn or altered file is refused."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        intact = metadata.get("sha256") == _content_digest(tensors)
        state = from_tensors(tensors)
        round, row = int(metadata["round"]), loads(metadata.get("row", "null"))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise RunDirError(f"{path} is not a whole checkpoint: {error}") from None
    if not intact:
        raise RunDirError(f"{path} has been altered: its content does not match its SHA-256")
    if metadata.get("plan") != digest:
        raise RunDirError(f"{path} belongs to plan {metadata.get('plan')}; expected {digest}")
    return round, state, row


def _content_digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
