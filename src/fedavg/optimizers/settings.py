"""What the optimisers share: the check of a setting, and the clipping of a gradient."""

from math import inf

from torch import Tensor

from fedavg.errors import PlanError


def require(optimizer: object, name: str, holds: bool, expected: str) -> None:
    """Refuse a setting unless the condition holds."""
    if not holds:
        raise PlanError(
            f"optimizer {optimizer.name}: {name} is {getattr(optimizer, name)}; "  # type: ignore[attr-defined]
            f"expected {expected}"
        )


def clip(g: Tensor, norm: float) -> None:
    """Scale g, in place, to this norm if it is longer, like `torch.nn.utils.clip_grad_norm_`."""
    if norm < inf:
        g.mul_((norm / (g.norm() + 1e-6)).clamp_(max=1.0))
