import gc
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Waiting threads must not occupy cores that others need: with several tests at a time there are more threads than
# cores, also in the processes that tests start. PyTorch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# glibc never returns what was freed at the end of a thread's own arena, and every fork copies the tables of these
# pages. It reads this when a process starts: the controller sets it for the workers, who keep it from their children.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("MALLOC_ARENA_MAX", None)
else:
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")

import pytest
import torch
from hypothesis import settings

import fedavg
from fedavg import native
from fedavg.engine.memory import trim
from fedavg.fleets.http.server.logs import StderrLines

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "benchmarks")]
# Collections of young objects take a twentieth of all time by default.
gc.set_threshold(20_000, 20, 20)

sys.path.append(str(TESTS.parent))  # a spawned worker imports a test by its name, tests.fleets.test_start

# A busy machine must not fail a property test; every run tries other examples.
settings.register_profile("fedavg", deadline=None, max_examples=50)
settings.load_profile("fedavg")


#: Files whose tests share something expensive (a server, a database, a finished run): each stays on one worker.
SHARING = (
    "native/test_wheel.py",
    "http/test_replicas.py",
    "campaign/test_execute.py",
    "campaign/test_processes.py",
    "test_own_package.py",
    "http/test_together.py",
    "http/test_security.py",
    "http/test_hostile.py",
    "http/test_store.py",
    "http/test_load.py",
    "cli/test_run.py",
)
#: Tests that import what takes seconds and hundreds of MB (peft, transformers, datasets, onnx, mlflow): only one worker
#: runs them, because every fork of a large process is slow.
IMPORTING = (
    "adapters/test_lora.py",
    "engine/test_structured.py",
    "data/test_examples.py",
    "study/test_track.py",
    "study/test_export_model.py",
    "[lora.py]",
    "[adapters.md]",
    "[data.md]",
)
#: Tests that look at pages with one Chromium.
BROWSING = ("page/test_browser.py", "page/test_export.py", "page/test_fleet.py")
#: Pages that show the same commands, each of which computes for seconds.
ACCOUNTING = ("[privacy.md]", "[private.md]", "[tutorial.md]", "::test_the_commands_of_the_readme")


def scope_of(nodeid: str) -> str:
    """What stays on one worker: a cluster, a file, or a single test."""
    file = nodeid.partition("::")[0]
    if "fleets/ray/" in file:
        return "ray"
    if file.endswith(IMPORTING) or nodeid.endswith(IMPORTING):
        return "importing"
    if nodeid.endswith(ACCOUNTING):
        return "accounting"
    if file.endswith(BROWSING):
        return "browser"
    return file if file.endswith(SHARING) else nodeid


def pytest_collection_modifyitems(items):
    """The longest groups come first, Ray before all, so that no worker ends late."""

    def rank(item):
        scope = scope_of(item.nodeid)
        return scope != "ray", scope == item.nodeid

    items.sort(key=rank)


def pytest_xdist_auto_num_workers(config):
    """Twice as many as there are cores, since tests of a fleet mostly wait, and one for Ray, whose tests wait most."""
    return 2 * len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else None


def pytest_xdist_make_scheduler(config, log):
    """Test by test to any free worker, in their order. (xdist's own groups do not work with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByScope(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    return ByScope(config, log)


#: Collect garbage again after this many new pages of memory: 64 MB.
GROWN_PAGES = 64 << 20 >> 12


class Memory:
    """A process of 2 GB takes three times as long to fork as one of 300 MB, and most tests fork workers."""

    def __init__(self):
        self.kept = self.pages()

    @staticmethod
    def pages():
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
        return int(resident) - int(shared)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self):
        if self.pages() > self.kept + GROWN_PAGES:
            gc.unfreeze()  # a server that ran in this process has frozen what was there, garbage too
            gc.collect()
            trim()
            self.kept = self.pages()


def build_kernels():
    """Build before the workers start, each of which would build the same."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(native.library, sorted(Path(fedavg.__file__).parent.rglob("*.c"))))


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        build_kernels()
    if sys.platform.startswith("linux"):
        config.pluginmanager.register(Memory())


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """As in a worker: tests run in parallel, and threads of small products would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _logging_as_before():
    """A command called in this process turns on its log; the next test must not find it on."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook, sys.unraisablehook)
    handlers, level = root.handlers[:], logging.getLogger("fedavg").level
    yield
    root.handlers[:] = [each for each in root.handlers if each in handlers or not isinstance(each, StderrLines)]
    logging.getLogger("fedavg").setLevel(level)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of 24 MB; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
