"""The command line where the system does not help: no home, no rights, a plain terminal, few open files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import programs

RUN = ["run", "mnist-2nn", "--rounds", "1", "-C", "0.02", "--no-plot", "--quiet"]
PROGRAM = [sys.executable, "-c", "from fedavg.cli import main; main()"]

NOBODY = 54321
needs_root = pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root, to be somebody else")


def fedavg(*words, before=(), cwd, **environment):
    """What the command said, as a user reads it."""
    known = {name: value for name, value in os.environ.items() if name != "HOME" or "HOME" not in environment}
    chosen = {name: value for name, value in (known | environment).items() if value is not None}
    command = [*before, *PROGRAM, *map(str, words)]
    result = subprocess.run(command, capture_output=True, cwd=cwd, timeout=120, env=chosen)
    assert b"Traceback" not in result.stderr, result.stderr.decode(errors="replace")
    return result.returncode, (result.stdout + result.stderr).decode(errors="replace")


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def as_nobody(*words, cwd, **environment):
    """What the command said to a user who has no rights here."""
    known = {name: value for name, value in (os.environ | environment).items() if value is not None}
    result = programs.fedavg(*words, cwd=cwd, env=known, prepare=[become_nobody])
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, result.stdout + result.stderr


@pytest.fixture
def place():
    """A folder that everybody can reach, as pytest's own are not."""
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_a_user_without_a_home(place):
    code, said = as_nobody(*RUN, cwd=place, HOME=None, XDG_CACHE_HOME=None, FEDAVG_DATA=None)
    assert code == 2
    assert "this user has no home folder; expected HOME to name one" in said


@needs_root
def test_a_home_that_can_not_be_read(place):
    (place / "home").mkdir(mode=0o700)
    code, said = as_nobody(*RUN, cwd=place, HOME=str(place / "home"), XDG_CACHE_HOME=None, FEDAVG_DATA=None)
    assert code == 2
    assert "Permission denied; expected files and folders that this user may use (HOME" in said
    assert str(place / "home") in said


@needs_root
def test_the_run_of_another_user(place):
    assert programs.fedavg(*RUN, "--run-dir", "run", cwd=place).returncode == 0
    code, said = as_nobody("resume", "run", cwd=place, HOME=str(place))
    assert code == 2
    assert "cannot write run/lock: Permission denied; expected a folder of this user" in said
    (place / "run" / "run.json").chmod(0)
    code, said = as_nobody("resume", "run", cwd=place, HOME=str(place))
    assert code == 2
    assert "cannot read run/run.json: Permission denied; expected a run of this user" in said


def test_a_terminal_that_knows_only_ascii(tmp_path):
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, said = fedavg(*RUN, cwd=tmp_path, **plain)
    assert code == 0
    assert "finished after 1 rounds" in said
    assert said.isascii()


@pytest.mark.parametrize("files", [8, 20])
def test_few_open_files(tmp_path, files):
    before = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash"]
    code, said = fedavg(*RUN, "--workers", "2", before=before, cwd=tmp_path)
    assert code == 0 or (code == 2 and "Too many open files" in said and "ulimit -n" in said), said
    assert code == 0 or files < 20, "20 are enough"


def test_runs_that_start_in_the_same_second_have_names_of_their_own(tmp_path):
    words = [*RUN, "--json", "--workers", "1"]
    begun = [
        programs.start(*words, out=tmp_path / f"out-{k}", err=tmp_path / f"err-{k}", cwd=tmp_path) for k in range(4)
    ]
    for process in begun:
        process.join(240)
    directories = {json.loads((tmp_path / f"out-{k}").read_text())["run_dir"] for k in range(4)}
    assert len(directories) == 4
    assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").iterdir()} == directories


def test_a_bad_plan_leaves_no_directory(tmp_path):
    ended = programs.fedavg("run", "mnist-2nn", "--clients", "7", "--partition", "no-such", cwd=tmp_path)
    assert ended.returncode == 2
    assert not list(tmp_path.glob("runs/*"))


RESUMED = """
import os, signal, sys, time
from pathlib import Path
import fedavg
from fedavg import Task
from toys import toy_data, toy_plan
from torch import nn

class Long(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.home = os.getpid()
    def forward(self, x):
        if os.getpid() != self.home and Path(sys.argv[2]).exists():
            Path(sys.argv[3]).write_text(str(os.getpid()))
            time.sleep(60)
        return self.out(x)

def stop(event):
    if event.round == 1:
        raise KeyboardInterrupt

task = Task("long", Long)
try:
    fedavg.run(toy_plan(task=task, engine="plain", rounds=3, workers=1), sys.argv[1], stop)
except KeyboardInterrupt:
    pass
Path(sys.argv[2]).touch()
fedavg.resume(sys.argv[1], task=task, data=toy_data())
"""


@pytest.mark.skipif(os.name != "posix", reason="needs fork and locks")
def test_a_worker_that_outlives_its_server_does_not_hold_the_lock(tmp_path):
    from fedavg.runlog.rundir import RunDir

    run, begun, busy = tmp_path / "run", tmp_path / "begun", tmp_path / "busy"
    server = programs.start_script(RESUMED, run, begun, busy, out=tmp_path / "out", err=tmp_path / "err")
    until = time.monotonic() + 60
    while not (busy.exists() and busy.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    worker = int(busy.read_text())
    server.kill()
    server.join()
    try:
        os.kill(worker, 0)  # it still sleeps
        with RunDir(run).locked():
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
