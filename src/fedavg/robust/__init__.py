"""Rules over single updates, for cohorts in which some clients lie. A new one is one file and one line here."""

from collections.abc import Sequence

from fedavg.robust.bucketing import Bucketing
from fedavg.robust.centred import CentredClipping
from fedavg.robust.clipping import AdaptiveClipping, StaticClipping
from fedavg.robust.defence import Defence, TooFew
from fedavg.robust.dnc import DnC
from fedavg.robust.geomedian import GeometricMedian
from fedavg.robust.krum import Krum, MultiKrum
from fedavg.robust.mda import MinimumDiameter
from fedavg.robust.meamed import MeanAroundMedian
from fedavg.robust.mean import PlainMean
from fedavg.robust.median import Median
from fedavg.robust.nnm import NearestNeighbourMixing
from fedavg.robust.normbound import NormBound
from fedavg.robust.reducer import Case, PreAggregator, Reducer
from fedavg.robust.rows import Rows
from fedavg.robust.trimmed import TrimmedMean
from fedavg.specs import make

REDUCERS: dict[str, type[Reducer]] = {
    "mean": PlainMean,
    "median": Median,
    "trimmed": TrimmedMean,
    "meamed": MeanAroundMedian,
    "geomedian": GeometricMedian,
    "krum": Krum,
    "multikrum": MultiKrum,
    "centred": CentredClipping,
    "mda": MinimumDiameter,
    "normbound": NormBound,
    "dnc": DnC,
}

PRE_AGGREGATORS: dict[str, type[PreAggregator]] = {
    "nnm": NearestNeighbourMixing,
    "bucket": Bucketing,
    "clip": StaticClipping,
    "arc": AdaptiveClipping,
}


def make_defence(reducer: str | Reducer, pre: Sequence[str | PreAggregator] = ()) -> Defence:
    """The defence that a plan's `reducer` and `pre` stand for."""
    steps = tuple(make(step, PreAggregator) for step in pre)  # type: ignore[type-abstract]
    return Defence(make(reducer, Reducer), steps)  # type: ignore[type-abstract]


__all__ = [
    "PRE_AGGREGATORS", "REDUCERS", "AdaptiveClipping", "Bucketing", "Case", "CentredClipping", "Defence", "DnC",
    "GeometricMedian", "Krum", "MeanAroundMedian", "Median", "MinimumDiameter", "MultiKrum",
    "NearestNeighbourMixing", "NormBound", "PlainMean", "PreAggregator", "Reducer", "Rows", "StaticClipping", "TooFew",
    "TrimmedMean", "make_defence",
]  # fmt: skip
