"""A cell that is measured in seconds, and records made by hand."""

from pathlib import Path

from fedavg.campaign.records import ABANDONED, DIVERGED, TARGET, Record
from fedavg.paper.cells import IID, TWO_NN, Cell, PaperModel, Setting
from toys import toy_data

#: Named by plans as paper_toys:DATA, so that other processes find it.
DATA = toy_data((30, 40, 20, 30))
TOY_MODEL = PaperModel("2nn", "toys:TOY", "paper_toys:DATA", "", "", 4, 30, 60, rounds=1000, train_sample=20)
TOY_SETTING = Setting(TOY_MODEL, IID, C=0.5, E=1, B=10.0)
TOY_CELL = Cell(4, TOY_SETTING, target=0.93, paper=10, allowance=60, against="FedSGD")
#: What processes need to import the above.
PATHS = (Path(__file__).parent, Path(__file__).parents[1])


def record(cell: Cell, eta: float, accuracy, *, seed=0, stopped=TARGET, **changes) -> Record:
    """A run of the cell with this curve, evaluated as often as the cell's plan says."""
    every = cell.setting.eval_every
    rounds = tuple(every * (i + 1) for i in range(len(accuracy)))
    values = {
        "plan": cell.plan(eta, seed), "rounds": rounds, "values": tuple(accuracy),
        "train_loss": tuple(1.0 for _ in accuracy), "sample_rounds": (), "sample_loss": (),
        "rounds_run": rounds[-1] if rounds else 0, "stopped": stopped, "reason": stopped, "seconds": 2.0 * len(rounds),
        "date": "2026-01-02", "command": cell.command, "engine": "graph", "versions": {"fedavg": "0.1.0"},
    }  # fmt: skip
    return Record(**(values | changes))


def measured(cell: Cell) -> list[Record]:
    """A finished search: 0.215 reaches 0.97 half way between rounds 2 and 3, and the neighbours are no better."""
    low = [0.5, 0.6, 0.7]
    return [
        record(cell, 0.215, [0.90, 0.96, 0.98]),
        record(cell, 0.1, low, stopped=ABANDONED),
        record(cell, 0.464, [], stopped=DIVERGED),
    ]


__all__ = ["DATA", "PATHS", "TOY_CELL", "TOY_MODEL", "TOY_SETTING", "TWO_NN", "measured", "record"]
