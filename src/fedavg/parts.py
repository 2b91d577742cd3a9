"""The parts of a plan, one by one: each is made, and refused where the plan does not fit it."""

from typing import TYPE_CHECKING

from fedavg.algorithms import Algorithm
from fedavg.codecs import Codec, make_codec
from fedavg.codecs.downlink import Downlink
from fedavg.engine.model import Model
from fedavg.errors import PlanError
from fedavg.plan import Plan
from fedavg.samplers import Sampler, make_sampler
from fedavg.tasks import Task

if TYPE_CHECKING:  # secure aggregation needs `cryptography`, which a plain simulation does not
    from fedavg.secagg.options import Masking


def sampler_of(plan: Plan, task: Task) -> Sampler:
    sampler = make_sampler(plan.sampling)
    if sampler.needs_losses and "loss" not in task.judged_by:
        raise PlanError(
            f"sampling: got '{sampler}', which looks at clients' losses, and task '{task.name}' has no metric 'loss'; "
            "expected one: metrics = ['loss']"
        )
    return sampler


def secagg_of(plan: Plan) -> "Masking | None":
    if plan.secagg == "none":
        return None
    from fedavg.secagg.options import make_masking

    return make_masking(plan.secagg)


def bound_codec(value: str | Codec, task: Task, vectors: int) -> Codec:
    """A codec for so many vectors of the task's model, end to end."""
    return make_codec(value).bind(lambda: [tuple(slot.shape) for slot in Model(task, 0).slots] * vectors)


def downlink_of(plan: Plan, task: Task, algorithm: Algorithm) -> Downlink | None:
    if plan.downlink == "float32":
        return None
    if algorithm.asynchronous:
        raise PlanError(f"downlink: got '{plan.downlink}' with algorithm '{plan.algorithm}'; expected 'float32'")
    if algorithm.vectors_down != 1:
        raise PlanError(
            f"downlink: got '{plan.downlink}' with algorithm '{plan.algorithm}', which shares "
            f"{algorithm.vectors_down} vectors; only weights can be compressed: expected downlink 'float32'"
        )
    return Downlink(bound_codec(plan.downlink, task, 1), plan.seed)


def check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # PyTorch's words tell of its own insides
        raise PlanError(f"device: got '{device}', which is not at hand here; expected 'cpu', or 'cuda'") from error
