import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "benchmarks")]

# A busy machine must not fail a test of a law.
settings.register_profile("fedavg", deadline=None)
settings.load_profile("fedavg")


#: Files whose tests share what is dear to make (a server, a database, a finished run): each stays on one worker.
SHARING = (
    "cli/test_run.py",
    "http/test_hostile.py",
    "http/test_security.py",
    "http/test_store.py",
    "http/test_replicas.py",
    "http/test_together.py",
    "test_execute.py",
    "page/test_browser.py",
)


def pytest_xdist_auto_num_workers(config):
    """Half as many again as there are cores: tests of a fleet mostly wait."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2) if hasattr(os, "sched_getaffinity") else None


def pytest_xdist_make_scheduler(config, log):
    """Test by test to whoever is free, in the order of the files. (xdist's own groups do not work with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByFileWhereShared(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            if "fleets/ray/" in file:
                return "ray"  # one cluster for all of them
            return file if file.endswith(SHARING) else nodeid

    return ByFileWhereShared(config, log)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """As in a worker: tests run side by side, and threads of small products would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 24 MB; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can not mount a small disk here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
