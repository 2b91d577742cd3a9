"""How a metric is spread over clients."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, isfinite
from typing import Any, Final

import numpy as np
from torch import Tensor

from fedavg.metrics.metric import Metric, report

#: The quantiles that are recorded, in percent.
QUANTILES: Final = (10, 50, 90)
#: The share of clients that fare worst, whose mean is recorded.
WORST: Final = 0.1
#: Clients that are named for faring worst, at most.
NAMED: Final = 10
#: What is reported of a metric's spread.
SPREADS: Final = (*(f"p{q}" for q in QUANTILES), "variance", "worst_decile")


@dataclass(frozen=True)
class OnClients:
    """A model as clients judged it on examples of their own.

    `metrics` are over all examples of these clients together. `spread` is over clients, each counting once; it is
    empty where nothing but the clients' sum is known.
    """

    clients: int
    metrics: Mapping[str, float]
    spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    #: For each metric the clients that fare worst, and how they fare; empty where single clients may not be known.
    worst: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    #: The metrics over the examples of each group of the plan's world.
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name not in ("worst", "groups")}


def spread_of(metrics: Mapping[str, Metric], by_client: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
    """For each metric its quantiles, variance and worst decile over clients, given the sums of each client."""
    values = {
        name: [value for sums in by_client if isfinite(value := metric.value(sums[name]))]
        for name, metric in metrics.items()
    }
    return {name: describe(each, metrics[name].higher_is_better) for name, each in values.items() if each}


def describe(values: Sequence[float], higher_is_better: bool | None) -> dict[str, float]:
    """Quantiles by linear interpolation; the worst decile is the mean over the tenth of clients that fare worst.

    >>> describe([0.0, 0.25, 0.5, 0.75, 1.0], True)
    {'p10': 0.1, 'p50': 0.5, 'p90': 0.9, 'variance': 0.125, 'worst_decile': 0.0}
    """
    in_order = sorted(values)  # over a network they come in any order, which must not change a bit
    found = {f"p{q}": float(np.percentile(in_order, q)) for q in QUANTILES}
    found["variance"] = float(np.var(in_order))
    if higher_is_better is not None:
        count = ceil(WORST * len(in_order))
        found["worst_decile"] = float(np.mean(in_order[:count] if higher_is_better else in_order[-count:]))
    return found


def worst_of(
    metrics: Mapping[str, Metric], clients: Sequence[int], by_client: Sequence[Mapping[str, Tensor]]
) -> dict[str, dict[str, list[float]]]:
    """For each metric of which it is known what is better, the clients that fare worst, the worst first."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, metric in metrics.items():
        if metric.higher_is_better is None:
            continue
        sign = 1 if metric.higher_is_better else -1
        values = [(sign * metric.value(sums[name]), k) for k, sums in zip(clients, by_client, strict=True)]
        chosen = sorted((value, k) for value, k in values if isfinite(value))[:NAMED]
        found[name] = {"client": [k for _, k in chosen], "value": [sign * value for value, _ in chosen]}
    return found


def names_of_sums(metrics: Mapping[str, Metric]) -> list[str]:
    """A name for each sum of each metric, for where sums travel by name."""
    return [f"{name}.{place}" for name, metric in metrics.items() for place in range(metric.size)]


def whole_report(metrics: Mapping[str, Metric], sums: Mapping[str, Tensor]) -> dict[str, float]:
    """As `report`, without what is not a number, which JSON cannot express."""
    return {name: value for name, value in report(metrics, sums).items() if isfinite(value)}
