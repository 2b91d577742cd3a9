"""`fedavg` as a command in its own process, without the two seconds that importing PyTorch takes each time.

One process has imported it (template.py) and forks itself for every command (multiprocessing's fork server). Tests of a
command's very start (its imports, how the interpreter was called) need a real process: `sys.executable`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running, set_forkserver_preload
from pathlib import Path

TESTS = Path(__file__).parent


class Forked(ForkServerProcess):
    """A process that is forked from the template."""

    def start(self) -> None:
        _start_template()
        super().start()


@cache
def _start_template() -> None:
    """Its folder is named by the environment, because the fork server of Python 3.11 does not take over `sys.path`."""
    set_forkserver_preload(["template"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), before]))
    try:
        ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def start(
    *words: object, out: Path, err: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Forked:
    """A running command that writes its output to files."""
    arguments = (list(map(str, words)), out, err, str(cwd or Path.cwd()), dict(env or os.environ))
    process = Forked(target=_run, args=arguments)
    process.start()
    return process


def fedavg(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 240
) -> "subprocess.CompletedProcess[str]":
    """Run a command; returns its exit code and output."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = start(*words, out=out, err=err, cwd=cwd, env=env)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(["fedavg", *map(str, words)], timeout, out.read_bytes(), err.read_bytes())
        return subprocess.CompletedProcess(words, process.exitcode or 0, out.read_text(), err.read_text())


def _run(words: list[str], out: Path, err: Path, cwd: str, env: dict[str, str]) -> None:
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)]
    from fedavg.cli import main

    sys.argv = ["fedavg", *words]
    main()
