"""What the row of a round (`metrics.jsonl`) says of a metric, by the name that a target or a curve has for it.

accuracy             on the server's test set; as clients judge, where the server has none
clients.accuracy     as clients judge on what they hold out, over all their examples
clients.accuracy.p10 its spread over clients
training.train_loss  what the cohort measured while it trained
"""

from collections.abc import Mapping
from math import nan
from typing import Any, Final

CLIENTS: Final = "clients"
TRAINING: Final = "training"

Row = Mapping[str, Any]


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """JSON cannot express NaN: a row has None in its place."""
    return {name: nan if value is None else value for name, value in values.items()}


def judged(row: Row) -> Mapping[str, float] | None:
    """The metrics of a round that count: the server's, or the clients' where the server has none."""
    on_clients = row.get("on_clients")
    metrics = row["test"] or (on_clients["metrics"] if on_clients else None)
    return _numbers(metrics) if metrics else None


def by_clients(row: Row) -> dict[str, float]:
    """As clients judged, with the spread of a metric as `accuracy.p10`; empty if they did not."""
    on_clients = row.get("on_clients")
    if not on_clients:
        return {}
    spread = {f"{name}.{key}": value for name, each in on_clients["spread"].items() for key, value in each.items()}
    return _numbers({**on_clients["metrics"], **spread})


def in_training(row: Row) -> dict[str, float]:
    """What the cohort measured."""
    return _numbers({"train_loss": row["train_loss"], **row.get("metrics", {})})


def watched(row: Row, name: str) -> float | None:
    """The value by a name as above; None if the round has none."""
    whole = judged(row) or {}
    if name in whole:
        return whole[name]
    scope, _, inner = name.partition(".")
    if scope == CLIENTS:
        return by_clients(row).get(inner)
    return in_training(row).get(inner) if scope == TRAINING else None
