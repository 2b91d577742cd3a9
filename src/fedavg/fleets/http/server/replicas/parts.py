"""A replica's part of the sum of a round, and how it is sent from one replica to another."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedavg.errors import FleetError
from fedavg.fleets.attendance import Seen
from fedavg.fleets.http.server.gathering import Total
from fedavg.fleets.http.server.underway import Collected, Received
from fedavg.sums import checked_bound, to_float


@dataclass(frozen=True)
class PartOfGroup:
    """A replica's part of one group: the exact sum, int64, shape (P,), and what is known about the clients in it."""

    ring: Tensor
    bound: int
    received: Sequence[Received]
    sizes: Mapping[int, float]
    sources: frozenset[int]


def part_of(collected: Collected) -> PartOfGroup:
    """A copy, unaffected by later additions to the sum."""
    sources = frozenset(collected.sources)
    sizes = {k: collected.sizes[k] for k in sources}
    return PartOfGroup(collected.ring.clone(), collected.sum.bound, list(collected.received), sizes, sources)


def dump_parts(parts: Sequence[PartOfGroup]) -> bytes:
    """A line of JSON, then the sums, one after another, little-endian."""
    heads = [
        {
            "numbers": len(part.ring),
            "bound": part.bound,
            "received": [_plain(received) for received in part.received],
            "sizes": [[k, size] for k, size in part.sizes.items()],
            "sources": sorted(part.sources),
        }
        for part in parts
    ]
    return b"".join([json.dumps(heads).encode(), b"\n", *(part.ring.numpy().astype("<i8").tobytes() for part in parts)])


def parse_parts(data: bytes) -> list[PartOfGroup]:
    """Parse what `dump_parts` made; raises FleetError if it is something else."""
    line, _, rings = data.partition(b"\n")
    try:
        heads = json.loads(line)
        ends = list(accumulate((int(head["numbers"]) for head in heads), initial=0))
        numbers = np.frombuffer(rings, "<i8").astype(np.int64)
        if len(numbers) != ends[-1]:
            raise ValueError(f"{len(numbers)} numbers came; expected {ends[-1]}")
        slices = [torch.from_numpy(numbers[start:end]) for start, end in pairwise(ends)]
        return [_parsed(head, ring) for head, ring in zip(heads, slices, strict=True)]
    except (ValueError, KeyError, TypeError) as error:
        raise FleetError(f"a replica's part of the sum cannot be read: {error}; do all run the same version?") from None


def _parsed(head: dict[str, Any], ring: Tensor) -> PartOfGroup:
    return PartOfGroup(
        ring,
        int(head["bound"]),
        [_received(received) for received in head["received"]],
        {int(k): float(size) for k, size in head["sizes"]},
        frozenset(head["sources"]),
    )


def _plain(received: Received) -> dict[str, Any]:
    """What was received, ready for JSON: bytes as base64."""
    seen = received.seen
    shown = None if seen is None else asdict(seen) | {"sketch": b64encode(seen.sketch).decode()}
    return asdict(replace(received, seen=None)) | {"seen": shown}


def _received(values: dict[str, Any]) -> Received:
    seen = values["seen"]
    whole = None if seen is None else Seen(**seen | {"sketch": b64decode(seen["sketch"])})
    return Received(**values | {"seen": whole})


def sources_of(parts: Sequence[PartOfGroup]) -> frozenset[int]:
    return frozenset(k for part in parts for k in part.sources)


def joined(parts: Sequence[PartOfGroup]) -> Total:
    """The sum over replicas, float64, and all that was received. Integer sums: the order does not change the bits."""
    ring, bound = torch.zeros_like(parts[0].ring), 0
    for part in parts:
        bound = checked_bound(bound, part.bound)
        ring += part.ring
    return to_float(ring), {}, [received for part in parts for received in part.received]
