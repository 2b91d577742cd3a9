"""The scripts of examples/paper that read records and run nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from paper_toys import record

from fedavg.paper.cells import CELLS
from fedavg.paper.choose import choose
from fedavg.paper.records import ABANDONED, DIVERGED, Records

EXAMPLES = Path(__file__).parents[2] / "examples" / "paper"
(CELL,) = choose([c for c in CELLS if c.table == 4], ["partition=iid,E=1,B=10"])


@pytest.fixture
def told(tmp_path):
    """Runs a script on a cell whose best rate has this curve, with neighbours that are no better."""

    def tell(script, curve, *options):
        store = Records(tmp_path)
        store.put(record(CELL, 0.215, curve))
        store.put(record(CELL, 0.1, [0.3] * len(curve), stopped=ABANDONED))
        store.put(record(CELL, 0.464, [], stopped=DIVERGED))
        command = [sys.executable, str(EXAMPLES / script), "--records", str(tmp_path), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    return tell


def test_who_tests_seldom_misses_a_lucky_round(told):
    """Above 97 % in round 2, by luck, and from round 5 on.

    Tested in rounds 2, 4, 6: at once. In rounds 1, 3, 5: between 3 and 5. In 3, 6: between 3 and 6; in 1, 4: never.
    """
    curve = [0.95, 0.99, 0.95, 0.95, 0.99, 0.99]
    lines = told("seldom.py", curve, "--only", "model=2nn,partition=iid,C=0.1,E=1,B=10,target=0.97", "--every", "1,2,3")
    (row,) = [i for i, line in enumerate(lines) if line.startswith("table4")]
    assert lines[row] == "table4 partition=iid,E=1,B=10, seed 0, 6 rounds run; paper 92:"
    assert lines[row + 1 : row + 4] == [
        "  tested every 1: 1.5",
        "  tested every 2: 3.0",  # the median of 2 and 4
        "  tested every 3: 4.5",  # of 2, 4.5 and never
    ]


def test_how_far_a_curve_was_by_the_papers_rounds(told):
    lines = told("levels.py", [0.5] * 90 + [0.96] + [0.5] * 30 + [0.97])
    assert lines == [
        "table1 model=2nn,partition=iid,C=0.1,B=10: 122 rounds, paper 87; by then 50.00% of 97%",
        "table4 partition=iid,E=1,B=10: 122 rounds, paper 92; by then 96.00% of 97%",
    ]
