"""The trimmed mean of each coordinate: Yin et al. 2018, "Byzantine-Robust Distributed Learning", Definition 2."""

from dataclasses import dataclass

from fedavg.robust.reducer import RankMean, Tolerant


@dataclass(frozen=True)
class TrimmedMean(Tolerant, RankMean):
    """The mean of each coordinate without its f largest and f smallest values.

    >>> str(TrimmedMean(0.3))
    'trimmed:0.3'
    """

    name = "trimmed"

    def ranks(self, rows: int, faults: int) -> range:
        return range(faults, rows - faults)
