"""Compression from the server to the clients (Sattler et al. 2020, Algorithm 2).

The server sends its change of the weights as a frame, and itself takes the decoded step, so that the server and every
client hold the same weights: w_{t+1} = w_t + decode(encode(w'_{t+1} - w_t + residual)). A client that was away fetches
the frames of all rounds that it missed, or the whole model, whichever is smaller; a new client fetches the whole model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedavg import seeds
from fedavg.codecs import Codec, make_codec
from fedavg.types import Slots

#: What earlier frames left out, shape (P,).
RESIDUAL: Final = "residual"
#: The last frames concatenated, uint8, and the length of each. Together they are smaller than the whole model: no
#: client would fetch more.
FRAMES: Final = "frames"
LENGTHS: Final = "lengths"
#: The round in which each client last had the model, 0 if never; long enough for the largest client number so far.
SEEN: Final = "seen"


@dataclass(frozen=True)
class Downlink:
    """Holds no state itself: what it remembers is passed in and out, so that a resumed run continues exactly."""

    codec: Codec
    seed: int

    def initial(self, weights: Tensor) -> Slots:
        return {
            RESIDUAL: torch.zeros_like(weights),
            FRAMES: torch.zeros(0, dtype=torch.uint8),
            LENGTHS: torch.zeros(0, dtype=torch.int64),
            SEEN: torch.zeros(0, dtype=torch.int64),
        }

    def frames(self, slots: Slots) -> list[bytes]:
        """The last changes, oldest first: the newest leads to the server's weights."""
        ends = [0, *slots[LENGTHS].cumsum(0).tolist()]
        kept = slots[FRAMES].numpy().tobytes()
        return [kept[start:end] for start, end in pairwise(ends)]

    def fetched(self, slots: Slots, cohort: Sequence[int], round: int) -> int:
        """Bytes that a cohort fetches to have the server's weights, which are those of this round."""
        # Entry n: what a client that had the model n rounds ago fetches; the last is the whole model, for all others.
        newest_first = slots[LENGTHS].flip(0).cumsum(0)
        costs = torch.cat([torch.zeros(1, dtype=torch.int64), newest_first, torch.tensor([_whole(slots)])])
        seen = _seen(slots, cohort)[list(cohort)]
        missed = torch.where(seen > 0, round - seen, len(costs) - 1)
        return int(costs[missed.clamp(max=len(costs) - 1)].sum())

    def send(
        self, slots: Slots, before: Tensor, after: Tensor, cohort: Sequence[int], round: int
    ) -> tuple[Tensor, Slots]:
        """The step from `before`, which `cohort` had, to `after`, as it is sent: returns the resulting weights, and
        what is kept."""
        change = after - before
        if self.codec.keeps_residual:
            change += slots[RESIDUAL]
        frame = self.codec.encode(change, seeds.rng(self.seed, round, seeds.NONE, "downlink"))
        step = self.codec.decode(frame, len(change))
        seen = _seen(slots, cohort)
        seen[list(cohort)] = round
        return before + step, {
            RESIDUAL: change - step if self.codec.keeps_residual else slots[RESIDUAL],
            **_kept([*self.frames(slots), frame], _whole(slots)),
            SEEN: seen,
        }

    def follow(self, weights: Tensor, frame: bytes) -> Tensor:
        """A client's weights after a frame: exactly the server's numbers."""
        return weights + self.codec.decode(frame, len(weights))


def _whole(slots: Slots) -> int:
    """Bytes of the whole model."""
    return make_codec("float32").max_bytes(len(slots[RESIDUAL]))


def _seen(slots: Slots, cohort: Sequence[int]) -> Tensor:
    """A copy with room for the cohort: clients that were never asked have no entry."""
    seen = slots[SEEN]
    return pad(seen, (0, max(0, max(cohort, default=-1) + 1 - len(seen)))).clone()


def _kept(frames: list[bytes], whole: int) -> dict[str, Tensor]:
    """The newest frames that together are smaller than the whole model."""
    while sum(map(len, frames)) >= whole:
        frames = frames[1:]
    return {
        FRAMES: torch.from_numpy(np.frombuffer(b"".join(frames), np.uint8).copy()),
        LENGTHS: torch.tensor([len(frame) for frame in frames], dtype=torch.int64),
    }
