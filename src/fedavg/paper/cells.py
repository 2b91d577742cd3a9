"""The 97 cells of the paper's Tables 1 to 4 as data (§3, appendix A), and the plan that measures each. Runs nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, isinf
from typing import Final

from fedavg.campaign.records import setting_key
from fedavg.plan import Plan

IID: Final = "iid"
NON_IID: Final = "non-iid"

#: A run may take this many times the paper's rounds before the target counts as not reached.
PATIENCE: Final = 3
#: The same if the paper has no number: times the longest run of the column.
PATIENCE_BLANK: Final = 2
#: No run is dropped before this many rounds: small numbers scatter.
LEAST_ALLOWANCE: Final = 100


@dataclass(frozen=True)
class PaperModel:
    """One of the paper's models with its data. `examples` is n_k on the average, `test_examples` what it is judged on.

    `rounds` is what its plans allow, more than any cell needs: runs are stopped from the outside, so that one run
    serves cells with other targets. `train_sample`: training examples on which its runs also note the loss of the
    shared model now and then (Figures 3, 6 and 8); 0 for none.
    """

    name: str
    task: str
    data: str
    iid: str
    non_iid: str
    clients: int
    examples: float
    test_examples: int
    rounds: int
    train_sample: int = 0

    @property
    def pixels(self) -> str:
        """The range of MNIST's pixels: centred in [-0.5, 0.5], or unit, in [0, 1]; empty for other data."""
        name, _, pixels = self.data.partition(":pixels=")
        return (pixels or "unit") if name == "mnist" else ""


TWO_NN: Final = PaperModel("2nn", "mnist-2nn", "mnist:pixels=centred", "iid", "shards", 100, 600, 10_000, 20_000)
#: The paper does not say how it scaled pixels. In [-0.5, 0.5], as in TensorFlow's MNIST example of its time, the 2NN
#: takes the paper's rounds, in [0, 1] at most half of them: the first is our result, the second is shown beside it.
TWO_NN_UNIT: Final = replace(TWO_NN, data="mnist")
CNN: Final = PaperModel("cnn", "mnist-cnn", "mnist", "iid", "shards", 100, 600, 10_000, 10_000, train_sample=10_000)
LSTM: Final = PaperModel(
    "lstm", "shakespeare-lstm", "shakespeare", "iid", "natural", 1144, 74.4, 20_831, 20_000, train_sample=5_000
)
CIFAR: Final = PaperModel("cifar", "cifar-cnn", "cifar10", "iid", "shards", 100, 500, 10_000, 300_000)
POSTS: Final = PaperModel("posts", "posts-lstm", "posts", "natural", "natural", 60_276, 52.3, 38_384, 10_000)


@dataclass(frozen=True)
class Setting:
    """A plan without its learning rate and seed. Equal settings share their runs, in whichever table they are."""

    model: PaperModel
    partition: str
    C: float
    E: int
    B: float
    algorithm: str = "fedavg"
    lr_decay: float = 1.0
    eval_every: int = 1

    def plan(self, eta: float, seed: int = 0) -> Plan:
        """One worker: runs are parallel, one per core, which wastes less than spreading one run over cores."""
        return Plan(
            task=self.model.task,
            data=self.model.data,
            partition=self.model.iid if self.partition == IID else self.model.non_iid,
            algorithm="fedavg" if self.algorithm == "fedsgd" else self.algorithm,  # FedSGD is E=1, B=inf (§2)
            C=self.C,
            E=self.E,
            B=self.B if isinf(self.B) else int(self.B),
            lr=eta,
            lr_decay=self.lr_decay,
            rounds=self.model.rounds,
            eval_every=self.eval_every,
            seed=seed,
            workers=1,
        )

    @cached_property
    def key(self) -> str:
        """The same for all runs of the setting: its plan without learning rate and seed."""
        return setting_key(self.plan(1.0))

    @property
    def labels(self) -> dict[str, str]:
        """Its labels as texts, which `--only` compares."""
        return {
            "model": self.model.name,
            "partition": self.partition,
            "algorithm": self.algorithm,
            "C": f"{self.C:g}",
            "E": str(self.E),
            "B": f"{self.B:g}",
            **({"pixels": self.model.pixels} if self.model.pixels else {}),
        }

    @property
    def cohort(self) -> int:
        """m = max(C K, 1)."""
        return 1 if self.algorithm == "sgd" else max(round(self.C * self.model.clients), 1)

    @property
    def updates(self) -> float:
        """u = E n / (K B), the expected local updates of a client in a round (§3)."""
        if self.algorithm == "sgd":
            return 1.0
        return self.E * (1.0 if isinf(self.B) else self.model.examples / self.B)

    @property
    def passes(self) -> float:
        """Examples that a round trains on, over all its clients and epochs."""
        return self.B if self.algorithm == "sgd" else self.cohort * self.E * self.model.examples


@dataclass(frozen=True)
class Cell:
    """One number of a table: rounds until `target` test accuracy. `paper` is None where the paper has a dash.

    `allowance`: rounds after which the target counts as not reached. `against`: the row whose rounds are divided by
    this one's to give the speed-up, as the paper does.
    """

    table: int
    setting: Setting
    target: float
    paper: float | None
    allowance: int
    against: str

    @property
    def model(self) -> str:
        return self.setting.model.name

    @property
    def labels(self) -> dict[str, str]:
        return {"table": str(self.table), **self.setting.labels, "target": f"{self.target:g}"}

    @property
    def name(self) -> str:
        """As in `table4 partition=iid,E=1,B=10`: enough to identify it."""
        return f"table{self.table} {self.choice}"

    @property
    def choice(self) -> str:
        """The `--only` that picks this cell of its table."""
        keys = {1: ("model", "partition", "C", "B"), 2: ("model", "partition", "E", "B"), 3: ("algorithm", "target"),
                4: ("partition", "E", "B")}[self.table]  # fmt: skip
        keys += ("pixels",) if self.setting.model == TWO_NN_UNIT else ()
        return ",".join(f"{key}={self.labels[key]}" for key in keys)

    @property
    def command(self) -> str:
        return f"fedavg paper table{self.table} --only {self.choice}"

    def plan(self, eta: float, seed: int = 0) -> Plan:
        return self.setting.plan(eta, seed)


def with_unit_pixels(cell: Cell) -> Cell | None:
    """The same cell with pixels in [0, 1]; None for cells that are measured in only one way."""
    if cell.setting.model != TWO_NN:
        return None
    return replace(cell, setting=replace(cell.setting, model=TWO_NN_UNIT))


def baseline(cell: Cell) -> Cell:
    """The cell that the paper's speed-up is against: C=0, FedSGD (E=1, B=inf) or SGD, in the same column."""
    if cell.against == "SGD":
        return next(c for c in CELLS if c.table == 3 and c.setting.algorithm == "sgd" and c.target == cell.target)
    row = {"C": "0"} if cell.against == "C=0" else {"E": "1", "B": "inf", "algorithm": "fedsgd"}
    return next(other for other in ALL_CELLS if other.labels == cell.labels | row)


# The paper's numbers. None: a dash ("not reached in the allowed time").

#: Table 1: C -> rounds for (IID B=inf, IID B=10, non-IID B=inf, non-IID B=10).
_TABLE_1: Final[dict[str, dict[float, tuple[float | None, ...]]]] = {
    "2nn": {
        0.0: (1455, 316, 4278, 3275),
        0.1: (1474, 87, 1796, 664),
        0.2: (1658, 77, 1528, 619),
        0.5: (None, 75, None, 443),
        1.0: (None, 70, None, 380),
    },
    "cnn": {
        0.0: (387, 50, 1181, 956),
        0.1: (339, 18, 1100, 206),
        0.2: (337, 18, 978, 200),
        0.5: (164, 18, 1067, 261),
        1.0: (246, 16, None, 97),
    },
}
_COLUMNS_1: Final = ((IID, inf), (IID, 10.0), (NON_IID, inf), (NON_IID, 10.0))

#: Tables 2 and 4: (E, B) -> rounds for (IID, non-IID).
_TABLE_2: Final[dict[str, dict[tuple[int, float], tuple[float, float]]]] = {
    "cnn": {
        (1, inf): (626, 483),
        (5, inf): (179, 1000),
        (1, 50.0): (65, 600),
        (20, inf): (234, 672),
        (1, 10.0): (34, 350),
        (5, 50.0): (29, 334),
        (20, 50.0): (32, 426),
        (5, 10.0): (20, 229),
        (20, 10.0): (18, 173),
    },
    "lstm": {
        (1, inf): (2488, 3906),
        (1, 50.0): (1635, 549),
        (5, inf): (613, 597),
        (1, 10.0): (460, 164),
        (5, 50.0): (401, 152),
        (5, 10.0): (192, 41),
    },
}
_TABLE_4: Final[dict[tuple[int, float], tuple[float, float]]] = {
    (1, inf): (1468, 1817),
    (10, inf): (156, 1100),
    (1, 50.0): (144, 1183),
    (20, inf): (92, 957),
    (1, 10.0): (92, 831),
    (10, 50.0): (45, 881),
    (20, 50.0): (39, 835),
    (10, 10.0): (34, 497),
    (20, 10.0): (32, 738),
}
#: Table 3, CIFAR-10: rounds to 80, 82 and 85 %.
_TABLE_3: Final[dict[str, tuple[float | None, ...]]] = {
    "sgd": (18_000, 31_000, 99_000),
    "fedsgd": (3750, 6600, None),
    "fedavg": (280, 630, 2000),
}
_TARGETS_3: Final = (0.80, 0.82, 0.85)


def per_round(decay: float, C: float) -> float:
    """The decay of eta in one round on CIFAR-10: we take the paper's decay to be over 1/C rounds, one turn per client.

    Figure 4 says "per round". If that meant a round of communication, FedSGD with its 0.9934 could learn in total only
    as much as in 151 rounds at the full rate, but in Table 3 it improves until round 6600.
    """
    return float(decay ** max(C, 1 / CIFAR.clients))


CIFAR_SETTINGS: Final = {
    "sgd": Setting(CIFAR, IID, C=0.0, E=1, B=100.0, algorithm="sgd", eval_every=100),
    "fedsgd": Setting(CIFAR, IID, C=0.1, E=1, B=inf, algorithm="fedsgd", lr_decay=per_round(0.9934, 0.1)),
    "fedavg": Setting(CIFAR, IID, C=0.1, E=5, B=50.0, lr_decay=per_round(0.99, 0.1)),
}
TARGETS: Final = {"2nn": 0.97, "cnn": 0.99, "lstm": 0.54}
_MODELS: Final = {model.name: model for model in (TWO_NN, CNN, LSTM, CIFAR)}


def federated(model: PaperModel, partition: str, C: float, E: int, B: float) -> Setting:
    """The setting of a cell of Tables 1, 2 and 4."""
    algorithm = "fedsgd" if E == 1 and isinf(B) else "fedavg"
    return Setting(model, partition, C, E, B, algorithm, eval_every=_eval_every(model, partition, C, E, B))


def _eval_every(model: PaperModel, partition: str, C: float, E: int, B: float) -> int:
    """Every round, except where there are thousands of them and evaluation would take longer than training.

    With one client a round on non-IID data, accuracy jumps from round to round, so that rare evaluations would find the
    target late; there every second round is evaluated.
    """
    if C == 0 and partition == NON_IID:
        return 2
    if C == 0 and model.name == "2nn" and isinf(B):
        return 5
    return 2 if model.name == "lstm" and E == 1 and B > 10 else 1


def _allowance(paper: float | None, column: list[float], every: int) -> int:
    rounds = max(PATIENCE * paper, LEAST_ALLOWANCE) if paper is not None else PATIENCE_BLANK * max(column)
    return every * ceil(rounds / every)


def _table_1() -> Iterator[Cell]:
    for name, rows in _TABLE_1.items():
        for C, values in rows.items():
            for index, ((partition, B), paper) in enumerate(zip(_COLUMNS_1, values, strict=True)):
                setting = federated(_MODELS[name], partition, C, 1 if name == "2nn" else 5, B)
                column = [row[index] or 0 for row in rows.values()]
                allowance = _allowance(paper, column, setting.eval_every)
                yield Cell(1, setting, TARGETS[name], paper, allowance, against="C=0")


def _by_epochs_and_batch(
    table: int, model: PaperModel, rows: dict[tuple[int, float], tuple[float, float]]
) -> Iterator[Cell]:
    """Tables 2 and 4: C = 0.1, one row for each (E, B)."""
    for (E, B), values in rows.items():
        for partition, paper in zip((IID, NON_IID), values, strict=True):
            setting = federated(model, partition, 0.1, E, B)
            allowance = _allowance(paper, [], setting.eval_every)
            yield Cell(table, setting, TARGETS[model.name], paper, allowance, against="FedSGD")


def _table_3() -> Iterator[Cell]:
    for algorithm, values in _TABLE_3.items():
        setting = CIFAR_SETTINGS[algorithm]
        for target, paper in zip(_TARGETS_3, values, strict=True):
            allowance = _allowance(paper, [value or 0 for value in values], setting.eval_every)
            yield Cell(3, setting, target, paper, allowance, against="SGD")


CELLS: Final[tuple[Cell, ...]] = (
    *_table_1(),
    *_by_epochs_and_batch(2, CNN, _TABLE_2["cnn"]),
    *_by_epochs_and_batch(2, LSTM, _TABLE_2["lstm"]),
    *_table_3(),
    *_by_epochs_and_batch(4, TWO_NN, _TABLE_4),
)

#: With the cells of the 2NN with pixels in [0, 1], which are shown beside the others.
ALL_CELLS: Final = (*CELLS, *(unit for cell in CELLS if (unit := with_unit_pixels(cell)) is not None))


# Where the search for a learning rate starts, in sixths of a decade (see search.rate): -6 is 0.1, 0 is 1.

#: (model, B) -> the start for (IID, non-IID). The records of a related cell, if any, give a better start.
_GUESSES: Final[dict[tuple[str, float], tuple[int, int]]] = {
    ("2nn", 10.0): (-4, -6),
    ("2nn", 50.0): (-4, -6),
    ("2nn", inf): (-2, -2),
    ("cnn", 10.0): (-6, -8),
    ("cnn", 50.0): (-4, -6),
    ("cnn", inf): (-4, -4),
    ("lstm", 10.0): (1, 1),
    ("lstm", 50.0): (3, 1),
    ("lstm", inf): (5, 5),
    ("cifar", 50.0): (-4, -4),
    ("cifar", 100.0): (-6, -6),
    ("cifar", inf): (-2, -2),
}


def first_guess(setting: Setting) -> int:
    iid, non_iid = _GUESSES.get((setting.model.name, setting.B), (-6, -6))
    return iid if setting.partition == IID else non_iid
