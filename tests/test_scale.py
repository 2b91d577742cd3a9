"""Half a million clients: a plan starts in seconds and stays small, since only the cohort's data is ever made."""

import json
import subprocess
import sys
import time

import pytest

from fedavg.bench.process_tree import TreeMemory


@pytest.mark.slow
def test_half_a_million_clients(tmp_path):
    options = [
        "--data",
        "synthetic-posts",
        "--clients",
        "500000",
        "-C",
        "0.0004",
        "--rounds",
        "1",
        "--json",
        "--no-plot",
    ]
    program = "from fedavg.cli import main; main()"
    command = [sys.executable, "-c", program, "run", "posts-lstm", *options, "--run-dir", str(tmp_path / "run")]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        memory = TreeMemory(process.pid)
        memory.start()
        assert process.stderr.readline().startswith("engine ")  # workers are up, round 1 begins
        started_s = time.monotonic() - began
        stdout, _ = process.communicate()
        memory.stop()
    row = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert row["clients"] == 200
    assert json.loads(stdout)["status"] == "finished"
    assert started_s < 10
    assert 0 < memory.rss < 2000
