"""The server's state on disk: a safetensors file per checkpoint. After a crash the old or the new file is intact."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from json import dumps, loads
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from fedavg.errors import RunDirError
from fedavg.files import write_atomically
from fedavg.runlog.seals import canonical
from fedavg.types import State


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


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round, with everything that a resumed run must restore."""

    round: int
    state: State
    #: The plan's digest.
    plan: str
    #: The row of the round; none before round 1.
    row: dict[str, Any] | None = None
    #: The digest of the rows before it (see `seals.py`).
    rows: str = ""
    #: How long the files of the clients' states were (see `states.py`).
    clients: Mapping[str, int] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Written atomically; the digest covers every value."""
    tensors = to_tensors(checkpoint.state)
    metadata = {
        "round": str(checkpoint.round),
        "plan": checkpoint.plan,
        "row": dumps(checkpoint.row),
        "rows": checkpoint.rows,
        "clients": dumps(dict(checkpoint.clients)),
    }
    write_atomically(path, save(tensors, metadata | {"sha256": _content_digest(tensors, metadata)}))


def load_checkpoint(path: Path, plans: Collection[str]) -> Checkpoint:
    """A checkpoint of a plan with one of these digests; a torn or altered file is refused."""
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        intact = metadata.pop("sha256", None) == _content_digest(tensors, metadata)
        checkpoint = Checkpoint(
            round=int(metadata["round"]),
            state=from_tensors(tensors),
            plan=metadata["plan"],
            row=loads(metadata["row"]),
            rows=metadata["rows"],
            clients=loads(metadata["clients"]),
        )
    except Exception as error:  # parsers may raise anything on arbitrary bytes
        raise RunDirError(f"{path} is not a whole checkpoint: {error}") from None
    if not intact:
        raise RunDirError(f"{path} has been altered: its content does not match its SHA-256")
    if checkpoint.plan not in plans:
        raise RunDirError(f"{path} belongs to plan {checkpoint.plan}; expected {' or '.join(sorted(set(plans)))}")
    return checkpoint


def _content_digest(tensors: dict[str, torch.Tensor], metadata: Mapping[str, str]) -> str:
    digest = sha256(canonical(dict(metadata)))
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(canonical([name, str(tensor.dtype), list(tensor.shape)]))
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
