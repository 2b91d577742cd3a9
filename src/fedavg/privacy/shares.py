"""Noise that clients add, and the ring that their masked updates are summed in: nothing of it may be lost there.

The plan is checked for it before round 1 (`Masking.check`). Where the clipping norm adapts, the noise grows and shrinks
with it: the norm is then kept between what the ring's range and its steps allow.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fedavg.engine.model import Model
from fedavg.stages.clip import NORM, Clip
from fedavg.stages.noise import Noise
from fedavg.types import Work

if TYPE_CHECKING:
    from fedavg.secagg.options import Masking, Shares
    from fedavg.setup import Draft


def bind_shares(draft: "Draft") -> "Draft":
    """The draft, with secure aggregation and clipping told of the noise that clients add, if they do."""
    noise = next((stage for stage in draft.stages if isinstance(stage, Noise)), None)
    if draft.secagg is None or noise is None or noise.where != "clients":
        return draft
    from fedavg.secagg.options import Shares

    assert noise.clip, "a plan with noise and no clip is refused"
    work, size = _first_work(draft, noise.clip), draft.update_size(len(Model(draft.task, 0).vector))
    shares = Shares(noise.clip.sensitivity(work), noise.share(work, size), noise.bits, noise.least)
    masking = replace(draft.secagg, shares=shares)  # type: ignore[type-var]
    limits = _norms(noise.clip.norm, shares, masking, min(10 * draft.cohort_size, draft.clients.count))
    stages = (replace(stage, norms=limits) if isinstance(stage, Clip) else stage for stage in draft.stages)
    return replace(draft, secagg=masking, stages=tuple(stages))


def _first_work(draft: "Draft", clip: Clip) -> Work:
    return replace(draft.plan.work(1), settings={NORM: clip.norm})


def _norms(norm: float, shares: "Shares", masking: "Masking", most_clients: int) -> tuple[float, float]:
    """The least and the largest norm whose noise is neither rounded away nor wraps; the plan's own is within them."""
    from fedavg.secagg.options import LEAST_STEPS
    from fedavg.secagg.ring import Encoding

    largest = norm * masking.clip * masking.cap / shares.range_for(shares.least)
    step = 2.0 ** -Encoding(max(most_clients, 2), 1, masking.clip, masking.cap, bits=masking.bits).fraction_bits
    least = 0.0 if shares.bits else norm * LEAST_STEPS * step / shares.std
    return min(least, norm), max(largest, norm)
