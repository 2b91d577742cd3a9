"""Liars that copy an honest client: Karimireddy, He and Jaggi 2022, §3.2. It hurts where clients' data differ."""

from dataclasses import dataclass

import numpy as np

from fedavg.attacks.attack import Attack, View
from fedavg.errors import PlanError


@dataclass(frozen=True)
class Mimic(Attack):
    """All liars send the update of one honest client of the cohort, in the order of their numbers. They see all.

    >>> str(Mimic())
    'mimic'
    """

    name = "mimic"
    sees = "honest"
    place: int = 0

    def __post_init__(self) -> None:
        if self.place < 0:
            raise PlanError(f"mimic: got place {self.place}; expected 0 or more")

    def forge(self, view: View) -> np.ndarray:
        honest = view.honest.basis.vectors
        return honest[self.place % len(honest)]
