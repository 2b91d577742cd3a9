"""`fedavg study robust --own`: every reducer against every attack, with 0, 10, 20 and 30 % liars.

20 clients with 300 images of MNIST each, half of them dealt at random and half sorted by label; the 2NN, 30 rounds of
one local epoch. Reducers are set to the actual share of liars (to 20 % if there are none).
"""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Final

import numpy as np

from fedavg.campaign.records import Record
from fedavg.data import ArrayData
from fedavg.data.location import data_directory
from fedavg.data.mnist import read
from fedavg.plan import Plan
from fedavg.seeds import NONE, rng
from fedavg.study.cells import FoundCell, PublishedCell, last, markdown, shown, written
from fedavg.study.figures import heat_maps
from fedavg.types import FederatedData

CLIENTS: Final = 20
EXAMPLES: Final = 300
SHARES: Final = (0.1, 0.2, 0.3)
#: F stands for the share of liars.
REDUCERS: Final = (
    "mean", "median", "trimmed:F", "meamed:F", "geomedian", "krum:F", "multikrum:F", "centred:2.0", "mda:F",
    "normbound:2.0", "dnc:F",
)  # fmt: skip
#: The most informative come first.
ATTACKS: Final = (
    "ipm:1.0", "alie", "signflip:3.0", "backdoor:0:boost=5.0", "labelflip", "minmax", "scaled:10.0", "mimic",
    "gaussian", "optalie", "optipm", "freerider", "nan",
)  # fmt: skip
_BACKDOOR: Final = "backdoor"


def some_mnist() -> FederatedData:
    """6,000 images for 20 clients, half at random and half sorted by label; all 10,000 test images."""
    train, test = read(data_directory(None))
    chosen = rng(0, NONE, NONE, "some mnist").permutation(len(train))[: CLIENTS * EXAMPLES]
    half = len(chosen) // 2
    labels = train.y.numpy()
    by_label = chosen[half:][np.argsort(labels[chosen[half:]], kind="stable")]
    pairs = zip(np.array_split(chosen[:half], CLIENTS), np.array_split(by_label, CLIENTS), strict=True)
    return ArrayData("some mnist", train.x, train.y, [np.concatenate(pair) for pair in pairs], test)


def plan_of(reducer: str, attack: str | None, share: float, seed: int = 0) -> Plan:
    lying = {"attack": attack, "attackers": share} if attack else {}
    return Plan(
        task="mnist-2nn",
        data="fedavg.study.reducers:some_mnist",
        C=1.0,
        E=1,
        B=10,
        lr=0.05,
        rounds=30,
        eval_every=30,
        reducer=reducer.replace("F", f"{share or 0.2:g}"),
        seed=seed,
        **lying,  # type: ignore[arg-type]
    )


def cells(seed: int = 0) -> list[PublishedCell]:
    """Without liars first, then attack by attack, the largest share last."""
    honest = [_cell(reducer, None, 0.0, seed) for reducer in REDUCERS]
    lying = [_cell(rule, attack, share, seed) for share in (0.2, 0.3, 0.1) for attack in ATTACKS for rule in REDUCERS]
    return honest + lying


def _cell(reducer: str, attack: str | None, share: float, seed: int) -> PublishedCell:
    return PublishedCell(
        name=_name(reducer, attack, share),
        command="fedavg study robust --own",
        plans=(plan_of(reducer, attack, share, seed),),
        published=nan,
        within=0.0,
        value=_value,
        metric="attack_success" if attack and attack.startswith(_BACKDOOR) else "accuracy",
    )


def _name(reducer: str, attack: str | None, share: float) -> str:
    return f"{reducer.partition(':')[0]}, {attack or 'no liars'}, {share:.0%}"


def _value(records: Sequence[Record]) -> float:
    return last(records[0])


def withstood(found: FoundCell, attack: str) -> tuple[str, float | None]:
    """A column of the figure, where more is better everywhere: of a backdoor, how often the trigger failed."""
    kind = attack.partition(":")[0]
    if kind != _BACKDOOR:
        return kind, found.ours
    return "backdoor\nfailed", None if found.ours is None else 1 - found.ours


def write(results: Sequence[FoundCell], out: Path) -> list[Path]:
    """robust_own.md, robust_own.json and a heat map for each share of liars."""
    known = {result.cell.name: result for result in results}
    tables, grids = [], {}
    for share in SHARES:
        rows = {
            rule.partition(":")[0]: [shown(known[_name(rule, attack, share)], 3) for attack in ATTACKS]
            for rule in REDUCERS
        }
        tables += [f"## {share:.0%} liars", markdown("reducer", [attack.partition(":")[0] for attack in ATTACKS], rows)]
        grids[f"{share:.0%} liars"] = {
            rule.partition(":")[0]: dict(withstood(known[_name(rule, attack, share)], attack) for attack in ATTACKS)
            for rule in REDUCERS
        }
    honest = {rule.partition(":")[0]: [shown(known[_name(rule, None, 0.0)], 3)] for rule in REDUCERS}
    text = "\n\n".join([
        "# Each reducer against each attack",
        "Test accuracy after 30 rounds; for the backdoor the share of images with the trigger that are taken for its "
        "target (lower is better; the figure shows the share that are not). Written by `fedavg study robust --own`.",
        "![A heat map for each share of liars](figures/robust_own.png)",
        "## No liars", markdown("reducer", ["accuracy"], honest), *tables,
    ])  # fmt: skip
    return [*written(results, text, out / "robust_own"), *heat_maps(grids, out / "figures" / "robust_own")]
