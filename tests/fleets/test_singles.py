import gc
import weakref
from multiprocessing import get_context

import pytest
import torch

from fedavg import LocalFleet, run, train
from fedavg.fleets.singles import SingleRows
from toys import toy_plan


def test_a_row_is_lent_again_only_when_nobody_holds_its_update():
    rows = SingleRows(count=1, size=3)
    row = rows.lend()
    assert (row, rows.lend()) == (0, None)
    rows.write(row, torch.tensor([1.0, 2.0, 3.0]))
    update = torch.frombuffer(rows.read(row), dtype=torch.float32)
    view = update[1:].numpy()
    assert update.tolist() == [1.0, 2.0, 3.0]
    del update
    assert rows.lend() is None  # a view is left
    assert view.tolist() == [2.0, 3.0]
    del view
    assert rows.lend() == 0


def test_a_row_whose_worker_has_died_is_free_at_once():
    rows = SingleRows(count=1, size=2)
    rows.give_back(rows.lend())
    assert rows.lend() == 0


def test_what_a_forked_process_writes_is_read_here():
    rows = SingleRows(count=3, size=2)
    process = get_context("fork").Process(target=rows.write, args=(1, torch.tensor([5.0, 6.0])))
    process.start()
    process.join()
    assert torch.frombuffer(rows.read(1), dtype=torch.float32).tolist() == [5.0, 6.0]


REDUCED = {"reducer": "median", "C": 1, "rounds": 3}


class Forgetful(LocalFleet):
    """Notes how many single updates of the round before are still in memory while the next cohort trains."""

    def __init__(self):
        super().__init__()
        self.before, self.still_there = [], []

    def train(self, cohort, work, parts):
        gc.collect()
        self.still_there.append(sum(update() is not None for update in self.before))
        result = super().train(cohort, work, parts)
        self.before = [weakref.ref(update.vector) for update in result.singles.values()]
        return result


def test_single_updates_are_gone_when_the_next_cohort_trains():
    fleet = Forgetful()
    for _ in train(toy_plan(**REDUCED), fleet):
        pass
    assert fleet.still_there == [0, 0, 0]


@pytest.mark.parametrize("rows", [0, 2])
def test_with_too_few_rows_the_others_are_sent(rows, monkeypatch):
    """As where a sampler draws a larger cohort than is expected."""
    expected = run(toy_plan(**REDUCED)).summary.model_sha256
    monkeypatch.setattr("fedavg.fleets.local.cohort_size", lambda C, population: rows)
    assert run(toy_plan(**REDUCED)).summary.model_sha256 == expected
