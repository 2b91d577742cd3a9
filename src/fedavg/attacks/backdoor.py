"""A backdoor with a trigger: Gu, Dolan-Gavitt and Garg 2017 (BadNets), in federated learning Bagdasaryan et al. 2020.

The trigger is a bright square in the last corner of an image (for examples that are plain vectors: the last features).
The attack's success is the share of test examples of other classes that the model takes for `target` when they bear
the trigger.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from fedavg.attacks.attack import Attack
from fedavg.attacks.labelflip import checked_labels
from fedavg.errors import DataError, PlanError
from fedavg.types import Examples


@dataclass(frozen=True)
class Backdoor(Attack):
    """Each liar puts a trigger on a `share` of its examples, labelled `target`; its update is multiplied by `boost`.

    It knows only its own examples. To outvote honest clients it may enlarge its update (model replacement).

    >>> str(Backdoor(target=7, boost=10.0))
    'backdoor:7:boost=10.0'
    """

    name = "backdoor"
    targeted = True
    target: int = 0
    share: float = 0.5
    size: int = 3
    boost: float = 1.0

    def __post_init__(self) -> None:
        if self.target < 0 or not 0 < self.share <= 1 or self.size < 1 or not 0 < self.boost < inf:
            raise PlanError(
                f"backdoor: got target={self.target}, share={self.share:g}, size={self.size}, boost={self.boost:g}; "
                "expected a class, a share above 0 to 1, 1 or more pixels, a finite boost above 0"
            )

    def on_examples(self, examples: Examples, rng: np.random.Generator) -> Examples:
        labels = checked_labels(examples, self.name)
        count = max(round(self.share * len(labels)), 1)
        chosen = torch.from_numpy(np.sort(rng.permutation(len(labels))[:count]))
        x, y = _tensor(examples.x).clone(), labels.clone()
        x[chosen] = self._stamped(x[chosen])
        y[chosen] = self.target
        return Examples(x, y)

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        return self.boost * vector if self.boost != 1 else vector

    def triggered(self, test: Examples) -> Examples:
        others = checked_labels(test, self.name) != self.target
        if not bool(others.any()):
            raise DataError(f"attack backdoor: all test examples are of class {self.target}; expected others too")
        return Examples(self._stamped(_tensor(test.x)[others]), torch.full_like(test.y[others], self.target))

    def _stamped(self, x: Tensor) -> Tensor:
        x = x.clone()
        corner = x[..., -self.size :, -self.size :] if x.dim() > 2 else x[..., -self.size :]
        corner.fill_(1.0 if x.dtype.is_floating_point else 255)
        return x


def _tensor(x: object) -> Tensor:
    if isinstance(x, Tensor) and x.dim() >= 2:
        return x
    raise DataError("attack backdoor: got examples that are not one tensor; expected images or vectors")
