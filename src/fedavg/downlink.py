"""Compression from the server to the clients (Sattler et al. 2020, Algorithm 2).

The server sends its change of the weights as a frame, and takes the step that the frame says, so that it and every
client hold the same weights: w_{t+1} = w_t + decode(encode(w'_{t+1} - w_t + residual)). A client that was away fetches
the frames of all rounds it missed, or the whole model, whichever is less; one that was never there has no choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from fedavg import seeds
from fedavg.codecs import Codec, make_codec
from fedavg.types import State

#: What earlier frames left out, shape (P,).
RESIDUAL: Final = "downlink.residual"
#: The bytes of all frames so far, shape (1,); and how many of them each client has had, shape (K,), -1 if never there.
SENT: Final = "downlink.sent"
SEEN: Final = "downlink.seen"


@dataclass(frozen=True)
class Downlink:
    """All that it remembers lies in the server's state: a resumed run goes on exactly."""

    codec: Codec
    seed: int

    def initial(self, state: State, population: int) -> State:
        own = {
            RESIDUAL: torch.zeros_like(state.weights),
            SENT: torch.zeros(1, dtype=torch.int64),
            SEEN: torch.full((population,), -1, dtype=torch.int64),
        }
        return replace(state, slots={**state.slots, **own})

    def fetched(self, state: State, cohort: Sequence[int]) -> int:
        """Bytes that a cohort fetches to have the state's weights."""
        whole = make_codec("float32").max_bytes(len(state.weights))
        seen = state.slots[SEEN][list(cohort)]
        missed = state.slots[SENT] - seen
        return int(torch.where(seen < 0, whole, missed.clamp(max=whole)).sum())

    def send(self, before: State, after: State, cohort: Sequence[int], round: int) -> State:
        """The state after a round in which `cohort` had the weights of `before`, with the step as it is sent."""
        change = after.weights - before.weights
        if self.codec.keeps_residual:
            change += before.slots[RESIDUAL]
        frame = self.codec.encode(change, seeds.rng(self.seed, round, seeds.NONE, "downlink"))
        step = self.codec.decode(frame, len(change))
        seen = before.slots[SEEN].clone()
        seen[list(cohort)] = before.slots[SENT]
        own = {
            RESIDUAL: change - step if self.codec.keeps_residual else before.slots[RESIDUAL],
            SENT: before.slots[SENT] + len(frame),
            SEEN: seen,
        }
        return replace(after, weights=before.weights + step, slots={**after.slots, **own})
