"""`Attack`: how clients lie, for simulations. Knows vectors and examples, not clients, processes or networks.

Two threat models, which an attack declares by `sees`:

    own       a liar knows what any client knows: its own examples, the model, its own update
    honest    liars work together, read the updates of all honest clients of the round before they send theirs, and know
              the server's defence with all its settings (but not what it draws)
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from fedavg.robust import Defence, Rows
from fedavg.specs import Pluggable
from fedavg.types import Examples


@dataclass(frozen=True)
class View:
    """What liars with `sees = "honest"` know: the honest updates, the number of liars, and the server's defence.

    `previous` is the last round's result, if the defence remembers it.

    >>> view = View(Rows.of([np.ones(2, np.float32)]), liars=1, defence=Defence(), rng=np.random.default_rng(0))
    >>> len(view.honest), view.liars
    (1, 1)
    """

    honest: Rows
    liars: int
    defence: Defence
    rng: np.random.Generator
    previous: np.ndarray | None = None


class Attack(Pluggable, ABC):
    """A way to lie. An attack of your own is a frozen dataclass that changes examples, updates, or forges them:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Lazy(Attack):
    ...     name = "lazy"
    ...
    ...     def on_update(self, vector, rng):
    ...         return vector / 2
    """

    kind = "attack"
    name: str
    #: The threat model: what liars know.
    sees: Literal["own", "honest"] = "own"
    #: False if what liars send holds NaN or infinity, which not every codec can carry.
    finite: bool = True
    #: True if the attack wants certain answers to certain examples (`triggered`).
    targeted: bool = False

    @classmethod
    def registry(cls) -> Mapping[str, type["Attack"]]:
        from fedavg.attacks import ATTACKS

        return ATTACKS

    def on_examples(self, examples: Examples, rng: np.random.Generator) -> Examples:
        """What a liar trains on instead of its own examples. The same client gets the same generator each round."""
        return examples

    def on_update(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        """What a liar sends instead of its own update, shape (P,), after all stages on the client."""
        return vector

    def forge(self, view: View) -> np.ndarray:
        """What all liars send, shape (P,), float32, if they see the honest updates. They do not train then."""
        raise NotImplementedError(f"attack {self.name} sees the honest updates; expected `forge`: define it")

    def triggered(self, test: Examples) -> Examples:
        """Test examples as the attacker would show them to the model, with the answers it wants, if it is `targeted`.

        How often the model gives these answers is reported as the metric `attack_success`.
        """
        raise NotImplementedError(f"attack {self.name} is targeted; expected `triggered`: define it")
