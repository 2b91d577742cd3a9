"""What clients measure in training, in the form of metrics: sums that can be added, and a function of the sums.

An algorithm names what its client half measures (`Algorithm.metrics`): a name for a number that is averaged over
clients by the weights of their updates, or a `Measure`, of which a client gives the sums. Here is how both travel: as
numbers by name, one for an average, `name.0`, `name.1` and so on for sums.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final, Protocol, final

import torch
from torch import Tensor

from fedavg.errors import FleetError, TaskError
from fedavg.metrics.metric import Measure, Sums, ratio

#: Which way is better, for averages whose names say what they are.
_DIRECTIONS: Final = {"train_loss": False, "accuracy": True, "loss": False, "error": False}
#: A sum beyond this does not fit the fixed-point numbers of secure aggregation.
_LARGEST_MASKED: Final = 2.0**31


@final
@dataclass(frozen=True)
class Average(Measure):
    """The mean over clients of a number that each has measured, by the weights of their updates.

    >>> Average("train_loss").value(torch.tensor([30.0, 20.0]))
    1.5
    """

    name: str
    higher_is_better: bool | None = None
    #: Σ weight * number, Σ weight.
    size = 2
    by_weight = True

    def value(self, sums: Tensor) -> float:
        return ratio(sums[0], sums[1])


class Measured(Protocol):
    """What came from one client: it counts for `weight`, and has numbers by name."""

    @property
    def weight(self) -> float: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


class MaskedTotal(Measured, Protocol):
    """What secure aggregation gives: the weight of `count` clients, and the means of their numbers by weight."""

    @property
    def count(self) -> int: ...


def measures_by_name(given: Iterable[str | Measure]) -> dict[str, Measure]:
    """What an algorithm measures; a plain name is an average."""
    made = [Average(each, _DIRECTIONS.get(each)) if isinstance(each, str) else each for each in given]
    return {measure.name: measure for measure in made}


def names_sent(measures: Mapping[str, Measure]) -> list[str]:
    """The names of all numbers that come with an update."""
    return [name for measure in measures.values() for name in _names(measure)]


def numbers_sent(measures: Mapping[str, Measure], found: Mapping[str, float | Tensor | Sums]) -> dict[str, float]:
    """What a client half has found, as numbers by name; TaskError if it is not what its algorithm names."""
    if found.keys() != measures.keys():
        raise TaskError(
            f"client_update gave the metrics {sorted(found)}; expected {sorted(measures)}, as in the algorithm's "
            "`metrics`: name them there, or leave them out here"
        )
    return {name: value for measure in measures.values() for name, value in _numbers(measure, found[measure.name])}


def sums_over(measures: Mapping[str, Measure], clients: Sequence[Measured]) -> dict[str, Tensor]:
    """The sums of each measure over the clients of a cohort."""
    return {name: _total(measure, clients) for name, measure in measures.items()} if clients else {}


def masked_numbers(measures: Mapping[str, Measure], sent: Measured) -> dict[str, float]:
    """The same numbers as secure aggregation takes them, which adds them up by weight: sums per unit of weight."""
    per_weight = 1 / sent.weight if sent.weight else 0.0
    numbers = dict(sent.metrics)
    for name in (name for measure in measures.values() if not measure.by_weight for name in _names(measure)):
        if abs(numbers[name]) >= _LARGEST_MASKED:
            raise FleetError(
                f"the sum {name} of this client is {numbers[name]:g}, beyond 2^31, which a masked sum cannot hold; "
                "expected less: use a metric on another scale"
            )
        numbers[name] *= per_weight
    return numbers


def unmasked_sums(measures: Mapping[str, Measure], total: MaskedTotal) -> dict[str, Tensor]:
    """The sums over a cohort whose numbers were masked."""
    sums: dict[str, Tensor] = {}
    for measure in measures.values():
        added = [total.weight * total.metrics[name] for name in _names(measure)]
        sums[measure.name] = torch.tensor([*added, total.weight] if measure.by_weight else added, dtype=torch.float64)
    return sums


def masked_bounds(
    measures: Mapping[str, Measure], bounds: Mapping[str, tuple[float, float]], total: MaskedTotal
) -> dict[str, tuple[float, float]]:
    """What the means by weight may be, if each client's numbers keep to the bounds."""
    per_weight = total.count / total.weight if total.weight > 0 else 0.0
    scales = {name: 1.0 if m.by_weight else per_weight for m in measures.values() for name in _names(m)}
    return {name: (low * scales[name], high * scales[name]) for name, (low, high) in bounds.items() if name in scales}


def _names(measure: Measure) -> list[str]:
    return [measure.name] if measure.by_weight else [f"{measure.name}.{place}" for place in range(measure.size)]


def _numbers(measure: Measure, found: float | Tensor | Sums) -> list[tuple[str, float]]:
    if measure.by_weight and type(found) is float:
        return [(measure.name, found)]
    given = torch.as_tensor(found).tolist() if isinstance(found, Tensor | int | float) else [*map(float, found)]
    names, numbers = _names(measure), given if isinstance(given, list) else [given]
    if len(numbers) != len(names) or isinstance(given, list) == measure.by_weight:
        expected = "one number" if measure.by_weight else f"its {measure.size} sums"
        raise TaskError(f"client_update gave {found!r} for metric '{measure.name}'; expected {expected}")
    return list(zip(names, map(float, numbers), strict=True))


def _total(measure: Measure, clients: Sequence[Measured]) -> Tensor:
    """Exactly rounded: the order of the clients cannot change a bit."""
    if measure.by_weight:
        sums = [fsum(c.weight * c.metrics[measure.name] for c in clients), fsum(c.weight for c in clients)]
    else:
        sums = [fsum(c.metrics[name] for c in clients) for name in _names(measure)]
    return torch.tensor(sums, dtype=torch.float64)
