"""A device's side of an evaluation: it judges a model on what it holds out, and sends sums only.

What may be asked follows from the device's own copy of the plan: a server can not have a model judged where the plan
does not say so, nor see one device's sums where the plan has secure aggregation.
"""

import numpy as np

from fedavg.codecs import make_codec
from fedavg.errors import FleetError
from fedavg.fleets.http.protocol import sums
from fedavg.fleets.http.protocol.messages import JudgeOffer
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.plan import Plan
from fedavg.seeds import NONE, rng
from fedavg.setup import Setup


def check_judging(plan: Plan, setup: Setup, held: int, offer: JudgeOffer) -> None:
    """Refuse an offer that the server's plan does not provide for. `plan` is as the server sent it."""
    if not ("clients" in plan.evaluate or (plan.evaluate == "auto" and plan.holdout)):
        raise FleetError(f"the server asks for an evaluation; the plan has evaluate '{plan.evaluate}'")
    if any(stage.hides_metrics for stage in setup.stages):
        raise FleetError("the server asks for an evaluation; in a private run clients' own numbers do not leave them")
    if setup.secagg and offer.session is None:
        raise FleetError("the server asks for sums that are not masked; the plan has secure aggregation")
    if not held:
        raise FleetError("this device holds no examples out to judge a model on")


def sums_frame(plan_digest: str, offer: JudgeOffer, found: dict[str, float]) -> bytes:
    """The sums as an update's frame: a vector that counts once."""
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
