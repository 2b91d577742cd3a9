"""Tables of runs and rounds as pandas data frames."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedavg.errors import FedAvgError

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    try:
        import pandas as pd
    except ImportError:
        raise FedAvgError("data frames need pandas, which is not installed: pip install 'fedavg[tables]'") from None
    return pd.DataFrame(list(rows))


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat row for each round.

    `accuracy`, `loss` and other metrics are the server's; `train.loss` is on the training set; `clients.accuracy` and
    `clients.accuracy.p10` are the clients'. `asked` and `missing.late` say who took part; `world.there` and others are
    from the simulated clock. Single clients have no column.

    >>> flat_rows([{"round": 1, "test": {"loss": 2.0}, "train": None, "metrics": {"norm": 3.0}}])
    [{'round': 1, 'loss': 2.0, 'norm': 3.0}]
    """
    return [_flat(row) for row in rows]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    nested = ("test", "train", "metrics", "on_clients", "ledger", "cohort", "world")
    flat = {name: value for name, value in row.items() if name not in nested}
    flat |= row.get("test") or {}
    flat |= {f"train.{name}": value for name, value in (row.get("train") or {}).items()}
    flat |= row.get("metrics") or {}
    asked = row.get("on_clients")
    if asked:
        flat |= {f"clients.{name}": value for name, value in asked["metrics"].items()}
        flat |= {
            f"clients.{name}.{key}": value for name, each in asked["spread"].items() for key, value in each.items()
        }
    if row.get("ledger"):
        flat |= {"epsilon": row["ledger"]["epsilon"], "delta": row["ledger"]["delta"]}
    return flat | _attended(row.get("cohort") or {}) | _in_world(row.get("world") or {})


def _attended(cohort: Mapping[str, Any]) -> dict[str, Any]:
    missing = {f"missing.{reason}": count for reason, count in cohort.get("missing", {}).items()}
    return {name: cohort[name] for name in ("asked", "survivors") if name in cohort} | missing


def _in_world(world: Mapping[str, Any]) -> dict[str, Any]:
    return {f"world.{name}": value for name, value in world.items() if isinstance(value, int | float)}
