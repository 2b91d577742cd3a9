"""Memory that is let go of: what a process computes is the same before and after."""

import ctypes
import gc
import sys
from pathlib import Path

import pytest
import torch

from fedavg.engine import memory
from fedavg.engine.memory import settle_before_fork, unmap_libraries

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/smaps")


def resident(name):
    """Bytes of a library's text that are mapped in this process."""
    rows = Path("/proc/self/smaps").read_text().splitlines()
    here, total = False, 0
    for row in rows:
        if "-" in row.split()[0] and ":" not in row.split()[0]:
            here = row.endswith(name) and " r-xp " in row
        elif here and row.startswith("Rss:"):
            total += int(row.split()[1]) * 1024
    return total


@linux
def test_pages_of_libraries_are_unmapped_and_come_back_when_needed():
    x = torch.arange(12.0).reshape(3, 4)
    expected = x.softmax(0) @ x.t()
    before = resident("libtorch_cpu.so")
    unmap_libraries()
    assert resident("libtorch_cpu.so") < before / 2
    assert torch.equal(x.softmax(0) @ x.t(), expected)


@linux
def test_mappings_that_were_written_to_are_left_alone(monkeypatch):
    asked = []
    real = ctypes.CDLL(None).madvise
    monkeypatch.setattr(memory, "_libc", lambda name: lambda start, size, how: asked.append((start.value, size.value)))
    unmap_libraries()
    assert asked
    assert real is not None
    changed = {m.start for m in memory._mappings() if m.changed_kb or not m.read_only or not m.of_file}
    assert not changed & {start for start, _ in asked}


def test_collectors_leave_what_was_there_at_the_fork_alone():
    try:
        settle_before_fork()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
    assert gc.get_freeze_count() == 0
