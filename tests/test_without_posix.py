"""The package where POSIX is missing: the names are taken away before it is imported, in the workers too."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedavg
import programs
from toys import put

#: Run by the main program and, since new processes import that program, by each of its workers.
TAKE_AWAY = """
import os, signal, sys
from multiprocessing import resource_tracker
import torch
resource_tracker._HAVE_SIGMASK = False
for name in ("starlette.applications", "uvicorn", "sqlalchemy", "cryptography.x509", "httpx2", "matplotlib.pyplot"):
    try:
        __import__(name)  # others may need POSIX; what is asked here is whether this package does
    except ImportError:
        pass
GONE = [
    "fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getloadavg", "sched_getaffinity", "sched_setaffinity",
    "register_at_fork", "pread", "pwrite", "preadv", "pwritev", "killpg", "setsid", "getpgid", "mkfifo", "memfd_create",
    "nice", "chown", "fchmod", "O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW",
    *(name for name in dir(os) if name.startswith(("posix_", "sched_"))),
]
for name in GONE:
    if hasattr(os, name):
        delattr(os, name)
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "syslog")
for name in MODULES:
    sys.modules[name] = None
killed = signal.SIGKILL
for name in ("SIGKILL", "SIGHUP", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGCHLD", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
"""

RUNS = (
    TAKE_AWAY
    + """
from torch import nn
from fedavg import ArrayData, Plan, Task, resume, run

signal.SIGKILL = killed  # Python's own way to end a process here; the package is imported, and does not ask for it

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))

def parts():
    x = torch.arange(160.0).sin().reshape(40, 4)
    y = (x[:, 0] > 0).long()
    return Task("net", net), ArrayData("waves", x, y, [range(k, 40, 5) for k in range(5)], (x, y))

if __name__ == "__main__":
    task, data = parts()
    plan = Plan(task=task, data=data, C=0.6, rounds=2, algorithm="scaffold", codec="topk:0.5", workers=2)
    run(plan, sys.argv[1])
    print(resume(sys.argv[1], rounds=4, workers=1, task=task, data=data).summary.model_sha256)
"""
)

WITH = "import signal, sys\nimport torch\nkilled = signal.SIGKILL\n"

IMPORTS = (
    TAKE_AWAY
    + """
from importlib import import_module
from pkgutil import walk_packages
import fedavg
for module in walk_packages(fedavg.__path__, "fedavg."):
    if not module.name.startswith(("fedavg.__main__", "fedavg.fleets.ray.")):  # Ray itself is for POSIX
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in (*MODULES, "fedavg"):
                raise
"""
)


def python(script, *given):
    return subprocess.run([sys.executable, str(script), *map(str, given)], capture_output=True, text=True)


def test_a_run_and_its_resumption_give_the_same_bits(tmp_path):
    put(tmp_path / "without.py", RUNS.encode())
    without = python(tmp_path / "without.py", tmp_path / "one")
    assert without.returncode == 0, without.stderr
    expected = programs.script(WITH + RUNS[len(TAKE_AWAY) :], tmp_path / "other")
    assert without.stdout == expected.stdout != "", expected.stderr


def test_every_module_can_be_imported(tmp_path):
    put(tmp_path / "imports.py", IMPORTS.encode())
    done = python(tmp_path / "imports.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["signal.SIGKILL", "signal.SIGHUP", "os.getuid()", "os.fork(", "os.pread("])
def test_what_windows_lacks_is_asked_for_only_where_it_is_known_to_be(name):
    """By `hasattr` in the lines above."""
    for path in Path(fedavg.__file__).parent.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if name in line:
                before = " ".join(lines[max(0, number - 12) : number])
                assert "hasattr" in before or "ImportError" in before, f"{path.name}:{number + 1}: {line.strip()}"
