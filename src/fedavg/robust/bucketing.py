"""Bucketing: Karimireddy, He and Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing"."""

from dataclasses import dataclass

import numpy as np

from fedavg.errors import PlanError
from fedavg.robust.reducer import Case, PreAggregator
from fedavg.robust.rows import Rows


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Replaces the updates by the means of random buckets of `size`; the last bucket may be smaller.

    >>> str(Bucketing(2))
    'bucket:2'
    """

    name = "bucket"
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise PlanError(f"bucket: got buckets of {self.size}; expected 1 or more updates in each")

    def rows_after(self, rows: int) -> int:
        return -(-rows // self.size)

    def mix(self, rows: Rows, case: Case) -> np.ndarray:
        order = case.rng.permutation(len(rows))
        mix = np.zeros((self.rows_after(len(rows)), len(rows)))
        for bucket, first in enumerate(range(0, len(rows), self.size)):
            members = order[first : first + self.size]
            mix[bucket, members] = 1 / len(members)
        return mix
