"""How long a cell is expected to take, from what other runs of its model took."""

import pytest
from paper_toys import record

from fedavg.campaign.records import Records
from fedavg.paper.cells import CELLS
from fedavg.paper.cost import LATEST, seconds_per_round

RUN, NOT_RUN = [cell for cell in CELLS if (cell.table, cell.model, cell.setting.partition) == (4, "2nn", "iid")][:2]


def test_the_latest_runs_of_a_model_tell_its_pace(tmp_path):
    store = Records(tmp_path)
    by_reference = seconds_per_round(NOT_RUN.setting, store)
    reference = seconds_per_round(RUN.setting, store)
    for seed in range(LATEST + 5):  # long ago each took ten times as long
        store.put(record(RUN, 0.1, [0.5, 0.6], seed=seed, seconds=20 * reference, date="2026-01-01"))
    assert seconds_per_round(NOT_RUN.setting, store) == pytest.approx(10 * by_reference)
    for seed in range(LATEST):
        store.put(record(RUN, 0.215, [0.5, 0.6], seed=seed, seconds=4 * reference, date="2026-01-02"))
    assert seconds_per_round(NOT_RUN.setting, store) == pytest.approx(2 * by_reference)
