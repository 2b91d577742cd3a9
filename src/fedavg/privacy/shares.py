"""Noise that clients add, and the ring that sums their masked updates: the ring must not lose any noise.

The plan is checked for this before round 1 (`Masking.check`). If the clipping norm adapts, the noise grows and shrinks
with it: the norm is then kept between the limits of the ring's range and its steps.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fedavg.engine.model import Model

if TYPE_CHECKING:
    from fedavg.draft import Draft
    from fedavg.secagg.options import Masking, Shares


def bind_shares(draft: "Draft") -> "Draft":
    """The draft, with secure aggregation and clipping adjusted to the noise that clients add, if any."""
    if draft.secagg is None or draft.mechanism is None or draft.mechanism.by != "clients":
        return draft
    from fedavg.secagg.options import Shares

    noise = next(stage for stage in draft.stages if stage.mechanism)
    bound = next(stage for stage in draft.stages if stage.bounds)
    work = replace(draft.plan.work(1), settings=bound.settings(bound.initial()))
    share = noise.share(work, draft.update_size(len(Model(draft.task, 0).vector)))
    shares = Shares(bound.sensitivity(work), share, draft.mechanism.bits, noise.least)
    masking = replace(draft.secagg, shares=shares)  # type: ignore[type-var]
    least, largest = _factors(shares, masking, min(10 * draft.cohort_size, draft.clients.count))
    return replace(draft, secagg=masking, stages=tuple(stage.held_within(least, largest) for stage in draft.stages))


def _factors(shares: "Shares", masking: "Masking", most_clients: int) -> tuple[float, float]:
    """How far the norm may shrink and grow before its noise is rounded away or wraps, as factors of the first norm."""
    from fedavg.secagg.options import LEAST_STEPS
    from fedavg.secagg.ring import Encoding

    largest = masking.clip * masking.cap / shares.range_for(shares.least)
    step = 2.0 ** -Encoding(max(most_clients, 2), 1, masking.clip, masking.cap, bits=masking.bits).fraction_bits
    return (0.0 if shares.bits else LEAST_STEPS * step / shares.std), largest
