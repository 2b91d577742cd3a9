"""A device's side of an evaluation: it judges a model on the examples that it holds out, and sends only sums.

The device's own copy of the plan limits what a server may ask for: a server cannot have a model judged unless the plan
says so, nor see one device's sums if the plan has secure aggregation.
"""

import numpy as np

from fedavg.codecs import make_codec
from fedavg.fleets.http.device.policy import MOST_CLIENTS, Declined, Policy
from fedavg.fleets.http.protocol import sums
from fedavg.fleets.http.protocol.messages import JudgeOffer
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.plan import Plan
from fedavg.seeds import NONE, rng
from fedavg.setup import Setup


def check_judging(policy: Policy, plan: Plan, setup: Setup, held: int, offer: JudgeOffer) -> None:
    """Refuse an offer that the plan (as the server sent it) or the owner's policy does not allow."""
    if not ("clients" in plan.evaluate or (plan.evaluate == "auto" and plan.holdout)) or offer.round > plan.rounds:
        raise Declined("bad-offer", f"an evaluation is asked for; the plan has evaluate '{plan.evaluate}'")
    if any(stage.hides_metrics for stage in setup.stages):
        raise Declined("bad-offer", "an evaluation is asked for; in a private run clients' numbers do not leave them")
    if (offer.session is None) != (setup.secagg is None):
        raise Declined("bad-offer", "the offer and the plan do not agree on secure aggregation")
    if not held:
        raise Declined("bad-offer", "this device holds no examples out to judge a model on")
    if not 1 <= offer.invited <= (plan.clients or MOST_CLIENTS):
        raise Declined("bad-offer", f"{offer.invited} clients are said to be invited; the plan has {plan.clients}")
    if offer.invited < policy.min_cohort:
        raise Declined("small-cohort", f"{offer.invited} clients are invited; this device requires {policy.min_cohort}")


def sums_frame(plan_digest: str, offer: JudgeOffer, found: dict[str, float]) -> bytes:
    """The sums as an update frame: a vector with weight 1."""
    vector = sums.split(np.array(list(found.values())))
    codec = make_codec("float32")
    header = UpdateHeader(
        plan=plan_digest,
        round=offer.round,
        attempt=offer.attempt,
        model=offer.model,
        codec=codec.name,
        numbers=len(vector),
        weight=1.0,
        metrics={},
    )
    return encode_update(header, codec.encode(vector, rng(0, offer.round, NONE, "sums")))
