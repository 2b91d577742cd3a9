"""Which plans fit a simulated world."""

from typing import TYPE_CHECKING

from fedavg.errors import PlanError
from fedavg.plan.plan import default_of
from fedavg.privacy.accounting import EveryRound

if TYPE_CHECKING:
    from fedavg.setup import Draft


def check_world(draft: "Draft") -> None:
    """Refuse what a simulated world can not time, and options that would have no effect."""
    plan, size = draft.plan, 1000
    if plan.changes is not None and draft.algorithm.pools_data:
        raise PlanError(f"changes: got '{plan.changes}' with algorithm '{plan.algorithm}', which has all data in the "
                        "hands of one client; expected none")  # fmt: skip
    if plan.world is None:
        if draft.population is not None and plan.closing != default_of("closing"):
            raise PlanError(f"closing: got '{plan.closing}' without a world, in which all clients answer at once; "
                            "expected a world, such as world = 'always'")  # fmt: skip
        if draft.sampler.remembers and draft.population is not None and draft.population.sizes is not None:
            raise PlanError(f"sampling: got '{draft.sampler}', which looks back at earlier rounds; expected a world, "
                            "such as world = 'always'")  # fmt: skip
        return
    what = f"world: got '{plan.world}' with"
    if plan.uplink != default_of("uplink"):
        raise PlanError(f"{what} uplink {plan.uplink:g}, which has no effect; set it by the world's devices: "
                        f"'always:alike:up={plan.uplink:g}'")  # fmt: skip
    if draft.secagg or plan.downlink != "float32":
        option = "downlink" if plan.downlink != "float32" else "secagg"
        raise PlanError(f"{what} {option} '{getattr(plan, option)}', whose messages the clock can not time; expected "
                        f"{option} '{default_of(option)}'")  # fmt: skip
    if draft.codec.frame_bytes(size) is None:
        raise PlanError(f"{what} codec '{plan.codec}', whose frames have no fixed length: who reports in time is known "
                        "before anybody trains; expected float32, float16, bfloat16, quantise or lowrank")  # fmt: skip
    if draft.noise_multiplier and not isinstance(draft.sampler.privacy(10, 1), EveryRound):
        raise PlanError(f"{what} noise and sampling '{draft.sampler}': who is there is not drawn at random, so that no "
                        "round is amplified by sampling; expected sampling 'turns', charged in full")  # fmt: skip
    if draft.algorithm.pools_data:
        raise PlanError(f"{what} algorithm '{plan.algorithm}', which has one client that is no device; expected none")
    if draft.algorithm.asynchronous and plan.closing != default_of("closing"):
        raise PlanError(f"closing: got '{plan.closing}' with algorithm '{plan.algorithm}', whose rounds end when its "
                        "buffer is full; expected 'all'")  # fmt: skip
