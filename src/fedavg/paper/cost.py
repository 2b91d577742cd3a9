"""About how long a cell takes on one core. Rough: enough to order the cells of a budget and tell hours from minutes."""

from math import inf
from statistics import median
from typing import Final

from fedavg.campaign.records import Record, Records
from fedavg.paper.cells import ALL_CELLS, Cell, Setting

#: The cost of a search in full-length runs: the best rate, parts of its neighbours, and about one step to get there.
RUNS_PER_SEARCH: Final = 2.5
#: How many of the latest runs give the pace of a model: older ones may be from another machine or engine.
LATEST: Final = 10

#: Seconds for a thousand examples on one core of an AMD EPYC: to train on them at each B, and (at 0) to evaluate them.
#: From `benchmarks/kernels.py` or a client's epoch timed alone. They are used only until there is a record of the
#: model; then its own pace counts.
REFERENCE: Final[dict[str, dict[float, float]]] = {
    "2nn": {10.0: 0.025, 50.0: 0.013, inf: 0.011, 0.0: 0.008},
    "cnn": {10.0: 0.5, 50.0: 0.3, inf: 0.3, 0.0: 0.13},
    "lstm": {10.0: 2.5, 50.0: 2.9, inf: 2.9, 0.0: 1.5},
    "cifar": {50.0: 0.65, 100.0: 0.65, inf: 0.7, 0.0: 0.3},
    "posts": {8.0: 3.0, inf: 1.6, 0.0: 1.4},
}


def seconds_per_round(setting: Setting, records: Records) -> float:
    """From records of the same setting; else of the same model, scaled by the examples trained on; else a reference."""
    same = [run for run in records.of(setting.key) if _has_pace(run)]
    if same:
        return median(run.seconds / run.rounds_run for run in same)
    return _reference(setting) * _pace(setting.model.task, records)


def _pace(task: str, records: Records) -> float:
    """How much longer than the reference the runs of this model took here."""
    settings = {cell.setting.key: cell.setting for cell in ALL_CELLS if cell.setting.model.task == task}
    runs = sorted((run for run in records if run.key in settings and _has_pace(run)), key=lambda run: run.date)
    ratios = [run.seconds / run.rounds_run / _reference(settings[run.key]) for run in runs[-LATEST:]]
    return median(ratios) if ratios else 1.0


def _has_pace(run: Record) -> bool:
    return run.rounds_run > 0 and run.seconds > 0


def _reference(setting: Setting) -> float:
    costs = REFERENCE[setting.model.name]
    batch = min((b for b in costs if b >= setting.B), default=inf)
    evaluation = setting.model.test_examples / setting.eval_every
    return (setting.passes * costs[batch] + evaluation * costs[0.0]) / 1000


def search_seconds(cell: Cell, records: Records) -> float:
    """The remaining seconds of a cell's search on one core, by the paper's number of rounds; at least a tenth of all.

    A cell that the paper leaves blank is expected to take half of its allowance.
    """
    rounds = cell.paper if cell.paper is not None else cell.allowance / 2
    whole = RUNS_PER_SEARCH * rounds * seconds_per_round(cell.setting, records)
    spent = sum(run.seconds for run in records.of(cell.setting.key) if run.plan.seed == 0)
    return max(whole - spent, whole / 10)


def line_seconds(setting: Setting, rounds: int, records: Records) -> float:
    """The seconds of a figure's line on one core, from its start."""
    return rounds * seconds_per_round(setting, records)
