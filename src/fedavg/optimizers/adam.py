"""Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019), as in `torch.optim`.

    m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g²
    w -= lr (m / (1 - beta1^t)) / (√(v / (1 - beta2^t)) + eps)

Adam adds weight_decay w to the gradient; AdamW instead first subtracts lr weight_decay w from the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt

from torch import Tensor

from fedavg.optimizers.optimizer import Optimizer
from fedavg.optimizers.settings import clip, require


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; the plan's learning rate is its step size, so 0.001 rather than 0.1.

    >>> import fedavg
    >>> plan = fedavg.Plan(optimizer=fedavg.Adam(weight_decay=1e-4), lr=0.001)
    """

    name = "adam"
    slots = ("m", "v")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = inf
    keep: bool = False

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            require(self, name, 0 <= getattr(self, name) < 1, "a number from 0 and below 1")
        require(self, "eps", 0 < self.eps < inf, "a finite number above 0")
        require(self, "weight_decay", 0 <= self.weight_decay < inf, "a finite number from 0")
        require(self, "clip_norm", self.clip_norm > 0, "a number above 0")

    def step(self, w: Tensor, g: Tensor, slots: Mapping[str, Tensor], lr: float, t: int) -> None:
        clip(g, self.clip_norm)
        self._decay(w, g, lr)
        m, v = slots["m"], slots["v"]
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        scale = g.copy_(v).sqrt_().div_(sqrt(1 - self.beta2**t)).add_(self.eps)
        w.addcdiv_(m, scale, value=-lr / (1 - self.beta1**t))

    def _decay(self, w: Tensor, g: Tensor, lr: float) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with the weights decayed beside the gradient, not through it.

    >>> import fedavg
    >>> plan = fedavg.Plan(optimizer="adamw:weight_decay=0.05", lr=0.001)
    """

    name = "adamw"
    weight_decay: float = 0.01

    def _decay(self, w: Tensor, g: Tensor, lr: float) -> None:
        w.mul_(1 - lr * self.weight_decay)
