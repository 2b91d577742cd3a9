"""What a measurement takes from the rounds and the process that it watches."""

import sys
import time

import pytest

from fedavg.bench.measure import early_ratio, watched
from fedavg.bench.process_tree import cpu_seconds
from fedavg.errors import FedAvgError

STARTS_BY_A_THREAD = """
import json, subprocess, sys, threading
held = "import time; held = bytearray(300 << 20); held[::4096] = b'1' * len(held[::4096]); time.sleep(3)"
thread = threading.Thread(target=lambda: subprocess.run([sys.executable, "-c", held], check=True))
thread.start()
thread.join()
print(json.dumps({"done": True}))
"""


def test_a_stall_in_rounds_2_to_10_shows_and_one_in_round_1_does_not():
    warm = [0.1] * 10
    assert early_ratio([5.0, *[0.1] * 9, *warm], [10] * 20) == pytest.approx(1)
    assert early_ratio([0.1, 1.0, *[0.1] * 8, *warm], [10] * 20) == pytest.approx(2)


def test_rounds_with_more_examples_may_take_longer():
    assert early_ratio([0.2, *[0.2] * 9, *[0.1] * 10], [20] * 10 + [10] * 10) == pytest.approx(1)


def test_memory_of_processes_that_a_thread_has_started_counts():
    answer, began, memory = watched([sys.executable, "-c", STARTS_BY_A_THREAD])
    assert answer == {"done": True}
    assert began <= time.time()
    assert memory.rss > 300


def test_a_process_that_fails_is_named_with_what_it_said():
    with pytest.raises(FedAvgError, match=r"failed with exit code 3: (?s:.*)no such model"):
        watched([sys.executable, "-c", "import sys; print('no such model', file=sys.stderr); sys.exit(3)"])


def test_a_process_that_takes_too_long_is_ended():
    busy = cpu_seconds()
    with pytest.raises(FedAvgError, match="did not end within 0.5 s"):
        watched([sys.executable, "-c", "while True: pass"], limit_s=0.5)
    settled = cpu_seconds()
    time.sleep(0.3)
    assert settled - busy < 5
    assert cpu_seconds() - settled < 0.2
