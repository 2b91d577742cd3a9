"""Scripts of examples/paper, on records made by hand: they train nothing here."""

import json
import os
from pathlib import Path

from paper_toys import record

import programs
from fedavg.campaign.records import ABANDONED, DIVERGED, Records
from fedavg.paper.cells import CELLS
from fedavg.paper.choose import choose

EXAMPLES = Path(__file__).parents[2] / "examples" / "paper"
(CELL,) = choose([c for c in CELLS if c.table == 4], ["partition=iid,E=1,B=10"])


def told(script, *options):
    code = f"import runpy; runpy.run_path({str(EXAMPLES / script)!r}, run_name='__main__')"
    done = programs.script(code, *options, env=os.environ | {"PYTHONPATH": str(EXAMPLES)})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_who_tests_seldom_misses_a_lucky_round(tmp_path):
    """At 99 % in round 2, by luck, and from round 5 on.

    Tested in rounds 1, 3, 5: at 5; in 2, 4, 6: at once. Every fifth round, beginning with 1 to 5: 6, 2, never,
    never, 5. Every tenth, beginning with 2, 5 or 6: at once; else never.
    """
    curve = tmp_path / "curve.json"
    row = {"E": 1, "lr": 0.1, "pixels": "[0, 1]", "seed": 0, "rounds": 6, "accuracy": [0.9, 0.99, 0.9, 0.9, 0.99, 0.99]}
    curve.write_text(json.dumps([row]))
    assert told("seldom.py", "--lr", 0.1, "--seeds", 1, "--rounds", 6, "--out", curve) == [
        "E=1, eta 0.1, pixels in [0, 1], seed 0: "
        "every 1: 2.0, every 2: 3.5, every 5: 6.0, every 10: not reached, every 20: not reached"
    ]


def test_how_far_a_curve_was_by_the_papers_rounds(tmp_path):
    store = Records(tmp_path)
    curve = [0.5] * 90 + [0.96] + [0.5] * 30 + [0.97]
    store.put(record(CELL, 0.215, curve))
    store.put(record(CELL, 0.1, [0.3] * len(curve), stopped=ABANDONED))
    store.put(record(CELL, 0.464, [], stopped=DIVERGED))
    assert told("levels.py", "--records", tmp_path) == [
        "table1 model=2nn,partition=iid,C=0.1,B=10: 122 rounds, paper 87; by then 50.00% of 97%",
        "table4 partition=iid,E=1,B=10: 122 rounds, paper 92; by then 96.00% of 97%",
    ]
