"""The plain path: one step of SGD by autograd, as anyone would write it. The fast path is tested against it."""

import torch
from torch import Tensor

from fedavg.engine.model import Model


def gradients(model: Model, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The batch's mean loss and its gradient for each trainable parameter (zero for one that is not used)."""
    parameters = list(model.parameters.values())
    with torch.enable_grad():
        loss = model.task.loss(model.module(x), y)
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss.detach(), [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]


def sgd_epoch(model: Model, x: Tensor, y: Tensor, batch: int, lr: float) -> Tensor:
    """One pass over (x, y) in order, in batches (the last may be short). Returns the sum of the examples' losses."""
    total = torch.zeros((), device=model.vector.device)
    for xs, ys in zip(x.split(batch), y.split(batch), strict=True):
        loss, grads = gradients(model, xs, ys)
        for parameter, gradient in zip(model.parameters.values(), grads, strict=True):
            parameter.detach().sub_(gradient, alpha=lr)
        total += loss * len(ys)
    return total
