"""The page of results says what the records say."""

import re
from pathlib import Path
from statistics import median

import pytest

from fedavg.campaign.records import Records
from fedavg.paper.cells import CELLS
from fedavg.paper.measure import results

DOCS = Path(__file__).parents[2] / "docs" / "results"
PAGE = (DOCS / "README.md").read_text()


@pytest.fixture(scope="module")
def measured():
    found = results([cell for cell in CELLS if cell.model == "2nn"], Records(DOCS / "records"))
    return [each for each in found if each.ours is not None]


def test_the_ratios_of_the_2nn(measured):
    ratios = [each.ratio for each in measured if each.ratio is not None]
    words = r"Over the (\d+) of 38 cells .*? is ([\d.]+), the least ([\d.]+),\s+the most ([\d.]+)\.\n"
    expected = (str(len(measured)), *(f"{ratio:.2f}" for ratio in (median(ratios), min(ratios), max(ratios))))
    assert re.search(words, PAGE, re.S).groups() == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [(1, r"2NN IID, C = [^:]+: ([^(]+) rounds \(([^)]+)\)"), (4, r"updates a round: ([^(]+) rounds \(([^)]+)\)")],
)
def test_the_rows_of_the_2nn_on_iid_data(measured, table, words):
    """By C with B=10 in Table 1, by the number of local updates in Table 4, as the paper orders them."""
    chosen = [each for each in measured if each.cell.table == table and each.cell.setting.partition == "iid"]
    if table == 1:
        chosen = [each for each in chosen if each.cell.setting.B == 10]
    expected = [
        ", ".join(f"{number:.0f}" for number in column)
        for column in zip(*((m.ours, m.cell.paper) for m in chosen), strict=True)
    ]
    assert list(re.search(words, PAGE).groups()) == expected
