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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Tests that share a fixture of their module (a server, a database) go to one worker, so that it is made once."""
    for item in items:
        used = item._fixtureinfo.name2fixturedefs
        shared = sorted(name for name, definitions in used.items() if definitions[-1].scope == "module")
        if shared:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}, {shared[0]}"))


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
