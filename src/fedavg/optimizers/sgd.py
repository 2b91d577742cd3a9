"""Stochastic gradient descent, as in `torch.optim.SGD`.

g = ∇l(w; b), scaled down to a norm of clip_norm if it is longer;   g += weight_decay w
v = momentum v + g;   w -= lr v      (Nesterov: w -= lr (g + momentum v))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor

from fedavg.optimizers.optimizer import Folded, Optimizer
from fedavg.optimizers.settings import clip, require


@dataclass(frozen=True)
class SGD(Optimizer):
    """SGD with momentum, Nesterov momentum, weight decay and clipping of each batch's gradient; plain by default.

    `clip_norm` bounds the gradient of the whole local objective, including an algorithm's correction but not weight
    decay. It gives no privacy: for that, bound whole updates (stage `clip`).

    >>> import fedavg
    >>> str(fedavg.Plan(optimizer="sgd:momentum=0.9").optimizer)
    'sgd:momentum=0.9'
    """

    name = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = inf
    keep: bool = False

    def __post_init__(self) -> None:
        require(self, "momentum", 0 <= self.momentum < 1, "a number from 0 and below 1")
        require(self, "weight_decay", 0 <= self.weight_decay < inf, "a finite number from 0")
        require(self, "clip_norm", self.clip_norm > 0, "a number above 0")
        require(self, "nesterov", not self.nesterov or self.momentum > 0, "false, or a momentum above 0")
        require(self, "keep", not self.keep or self.momentum > 0, "false, or a momentum above 0: there is none to keep")

    @property
    def slots(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("momentum",) if self.momentum else ()

    @property
    def folded(self) -> Folded | None:
        if self.clip_norm < inf:  # the norm needs the whole gradient
            return None
        return Folded(self.momentum, self.nesterov, self.weight_decay)

    def effective_steps(self, steps: int) -> float | None:
        """A gradient counts again in each later step, through the momentum (FedNova's |a|_1)."""
        m = self.momentum
        if self.keep or not m:
            return None if self.keep else steps
        heavy = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
        return steps + m * heavy if self.nesterov else heavy

    def step(self, w: Tensor, g: Tensor, slots: Mapping[str, Tensor], lr: float, t: int) -> None:
        clip(g, self.clip_norm)
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)
        if self.momentum:
            v = slots["momentum"].mul_(self.momentum).add_(g)
            g = g.add_(v, alpha=self.momentum) if self.nesterov else v
        w.sub_(g, alpha=lr)
