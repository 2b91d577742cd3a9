"""The steps of a client in the form that native code takes: a kind, numbers and flat vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedavg.engine.emit import Kind
from fedavg.engine.model import Model
from fedavg.optimizers.optimizer import Correction, Steps

WHOLE: Final = Kind(whole=True)


@dataclass(frozen=True)
class StepCall:
    """The arguments of one call of a native epoch besides its data."""

    kind: Kind
    numbers: list[float]
    #: w, towards, drift, v: the flat vectors.
    flat: Sequence[Tensor]
    #: Where the gradient of each parameter goes, if that is not the parameter itself.
    targets: list[Tensor]

    @cached_property
    def addresses(self) -> list[int]:
        """Where the targets and the flat vectors are in memory."""
        return [tensor.data_ptr() for tensor in (*self.targets, *self.flat)]


class StepCalls:
    """The step calls of one model: made once for each client's steps, and kept as long as those exist.

    Steps without state and correction are all alike at a rate: clients in a row share one call.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._empty = torch.empty(0, device=model.vector.device)
        self._made: WeakKeyDictionary[Steps, StepCall] = WeakKeyDictionary()
        self._alike: tuple[Steps, StepCall] | None = None

    @cached_property
    def gradient(self) -> Tensor:
        """The buffer for whole gradients, for optimisers that need them."""
        return torch.empty_like(self._model.trainable)

    def of(self, steps: Steps) -> StepCall:
        if steps.correction is None and not steps.slots:
            return self._of_alike(steps)
        made = self._made.get(steps)
        if made is None:
            made = self._made[steps] = self._make(steps)
        return made

    def _of_alike(self, steps: Steps) -> StepCall:
        if self._alike is not None:
            last, call = self._alike
            if last.lr == steps.lr and last.optimizer is steps.optimizer:
                return call
        call = self._make(steps)
        self._alike = (steps, call)
        return call

    def _make(self, steps: Steps) -> StepCall:
        """A call that adds pull (w - towards) + drift to the gradient."""
        folded = steps.optimizer.folded
        if folded is None:
            return StepCall(WHOLE, [0.0, 0.0, 0.0], [self._empty] * 4, self._model.split(self.gradient))
        pull, towards, drift = _joined(folded.weight_decay, steps.correction, self._model.trainable)
        kind = Kind(momentum=folded.momentum > 0, nesterov=folded.nesterov, pulled=pull != 0, drifted=drift is not None)
        if pull and not kind.momentum:  # both terms in one pass: pull (w - (towards - drift / pull))
            towards = _minus(towards, drift, 1 / pull, self._model.trainable)
            kind, drift = Kind(pulled=True), None
        elif pull and towards is not None:
            drift = _minus(drift, towards, pull, self._model.trainable)
            kind = Kind(momentum=True, nesterov=folded.nesterov, pulled=True, drifted=True)
        velocity = steps.slots["momentum"] if kind.momentum else self._empty
        flat = [self._model.trainable, *(self._empty if v is None else v for v in (towards, drift)), velocity]
        targets = self._model.split(velocity) if kind.momentum else []
        return StepCall(kind, [steps.lr, pull, folded.momentum], flat, targets)


def _joined(decay: float, correction: Correction | None, w: Tensor) -> tuple[float, Tensor | None, Tensor | None]:
    """Weight decay and a correction combined: pull, towards, drift, restricted to the trained weights."""
    if correction is None:
        return decay, None, None
    towards, drift = (v if v is None else v[: len(w)] for v in (correction.towards, correction.drift))
    pull = decay + correction.pull
    if decay and correction.pull and towards is not None:
        towards = towards * (correction.pull / pull)
    return pull, towards if correction.pull else None, drift


def _minus(a: Tensor | None, b: Tensor | None, scale: float, like: Tensor) -> Tensor:
    """a - scale b, where None is zero."""
    a = torch.zeros_like(like) if a is None else a
    return a if b is None else a.sub(b, alpha=scale)
