"""`Optimizer`: how a client steps. Knows flat vectors, not modules, batches or clients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedavg.specs import Pluggable


@dataclass(frozen=True)
class Folded:
    """Steps that a fast path may take without materialising the gradient g, since they are linear in it:

    g += weight_decay w;   v = momentum v + g;   w -= lr v,   or with Nesterov   w -= lr (g + momentum v)
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class Optimizer(Pluggable, ABC):
    """Turns gradients into steps. A frozen dataclass whose fields are its settings, as a plan writes them.

    >>> from dataclasses import dataclass
    >>> from fedavg import Optimizer
    >>> @dataclass(frozen=True)
    ... class SignSGD(Optimizer):
    ...     name = "signsgd"
    ...
    ...     def step(self, w, g, slots, lr, t):
    ...         w.sub_(g.sign_(), alpha=lr)
    """

    kind = "optimizer"
    name: str
    #: The vectors, shaped like the weights, that it carries from step to step; they start at zero.
    slots: tuple[str, ...] = ()
    #: True: the client keeps them from one of its rounds to the next. False: every round starts from zero.
    keep: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Optimizer"]]:
        from fedavg.optimizers import OPTIMIZERS

        return OPTIMIZERS

    @abstractmethod
    def step(self, w: Tensor, g: Tensor, slots: Mapping[str, Tensor], lr: float, t: int) -> None:
        """Change w, shape (P,), in place by its gradient g, which may be overwritten. Steps t count from 1."""

    def effective_steps(self, steps: int) -> float | None:
        """The total weight of the gradients in this many fresh steps, in units of the rate; None if unknown."""
        return None

    @property
    def folded(self) -> Folded | None:
        """What the fast path may do instead of `step`, with the same effect; None if there is no such thing."""
        return None


@dataclass(frozen=True)
class Correction:
    """What an algorithm adds to each gradient: pull (w - towards) + drift, linear in the weights w before the step.

    `towards` and `drift` have shape (P,); buffers, at the end of the vector, are never corrected. FedProx (a pull),
    SCAFFOLD (a drift) and FedDyn (both) have this form. A client half passes it to `client.epochs(work, ...)`.

    >>> w = torch.tensor([3.0, 1.0])
    >>> change_of(Correction(pull=0.5, towards=torch.tensor([1.0, 1.0]), drift=torch.tensor([0.0, 2.0])), w)
    tensor([1., 2.])
    """

    pull: float = 0.0
    towards: Tensor | None = None
    drift: Tensor | None = None


@dataclass(eq=False)
class Steps:
    """The local steps of a client under way: the rate, the optimiser and its state, and a correction.

    Compared by identity: an engine caches what it derives from each object.
    """

    optimizer: Optimizer
    lr: float
    correction: Correction | None = None
    slots: dict[str, Tensor] = field(default_factory=dict)
    #: Steps taken so far, including those of earlier rounds if the client keeps the optimiser's state.
    taken: int = 0


def change_of(correction: Correction | None, w: Tensor) -> Tensor | None:
    """What is added to the gradient at w, shape (P,) for the trained weights; None if nothing is."""
    if correction is None:
        return None
    total = None
    if correction.pull:
        assert correction.towards is not None, "checked by `checked`"
        total = correction.pull * (w - correction.towards[: len(w)])
    if correction.drift is not None:
        drift = correction.drift[: len(w)]
        total = drift if total is None else total + drift
    return total


def step_with(steps: Steps, w: Tensor, g: Tensor) -> None:
    """One step of any optimiser, from the gradient of the loss, shape (P,), and the correction."""
    change = change_of(steps.correction, w)
    if change is not None:
        g.add_(change)
    steps.taken += 1
    steps.optimizer.step(w, g, steps.slots, steps.lr, steps.taken)


def fresh(optimizer: Optimizer, size: int, lr: float, correction: Correction | None, device: str = "cpu") -> Steps:
    """Steps that begin with fresh optimiser state."""
    return Steps(optimizer, lr, correction, {name: torch.zeros(size, device=device) for name in optimizer.slots})
