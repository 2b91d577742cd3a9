"""The plain path: local steps by autograd, written in the obvious way. The fast path is tested against it."""

from typing import final

import torch
from torch import Tensor

from fedavg import trees
from fedavg.engine.model import Model
from fedavg.engine.pieces import Epoch, Piece
from fedavg.optimizers.optimizer import Folded, Steps, change_of, step_with
from fedavg.types import Examples

#: w -= lr g, and nothing else.
PLAIN_SGD = Folded()


def gradients(model: Model, batch: Examples) -> tuple[Tensor, list[Tensor]]:
    """The batch's mean loss and its gradient for each trainable parameter (zero for an unused one)."""
    parameters = list(model.parameters.values())
    with torch.enable_grad():
        loss = model.task.loss(trees.call(model.module, batch.x), batch.y)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the loss gave {loss!r} of type {type(loss).__name__}; expected a tensor of one number")
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss.detach(), [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]


def unused(model: Model, batch: Examples) -> list[str]:
    """The trainable parameters that the batch's loss does not depend on, by name."""
    with torch.enable_grad():
        loss = model.task.loss(trees.call(model.module, batch.x), batch.y)
        grads = torch.autograd.grad(loss, list(model.parameters.values()), allow_unused=True)
    return [name for name, gradient in zip(model.parameters, grads, strict=True) if gradient is None]


@final
class PlainEpochs:
    """Local epochs of one model: the same function for everything."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def epoch_for(self, piece: Piece, steps: Steps) -> Epoch:
        return self.epoch

    def epoch(self, piece: Piece, steps: Steps) -> float:
        """One step for each batch of the piece. Returns the sum of the losses."""
        total = torch.zeros((), device=self._model.vector.device)
        step = _sgd_step if steps.optimizer.folded == PLAIN_SGD else _step
        for batch in trees.batches(piece.examples, piece.batch):
            loss, grads = gradients(self._model, batch)
            step(self._model, grads, steps)
            total += loss * len(batch)
        return float(total)


def _sgd_step(model: Model, grads: list[Tensor], steps: Steps) -> None:
    """Plain SGD, parameter by parameter, as in every textbook; a correction is subtracted separately."""
    w = model.trainable
    change = change_of(steps.correction, w)
    for parameter, gradient in zip(model.parameters.values(), grads, strict=True):
        parameter.detach().sub_(gradient, alpha=steps.lr)
    if change is not None:
        w.sub_(change, alpha=steps.lr)


def _step(model: Model, grads: list[Tensor], steps: Steps) -> None:
    step_with(steps, model.trainable, torch.cat([g.flatten() for g in grads]))
