"""`fedavg` as a command in a process of its own, without the two seconds in which each would import PyTorch.

One process has imported it and forks itself for every command (multiprocessing's fork server). What a command does at
its very start (what it imports, how the interpreter was called) needs a real one: `sys.executable`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

FORK = get_context("forkserver")
FORK.set_forkserver_preload(
    [
        "fedavg.cli.fleet",
        "fedavg.cli.paper",
        "fedavg.cli.report",
        "fedavg.cli.run",
        "fedavg.fleets.local",
        "fedavg.programs.device",
        "fedavg.programs.replica",
        "fedavg.runner",
        "psycopg",
    ]
)


def fedavg(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 240
) -> "subprocess.CompletedProcess[str]":
    """A command, its exit code and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        arguments = (list(map(str, words)), out, err, str(cwd or Path.cwd()), dict(env or os.environ))
        process = FORK.Process(target=_run, args=arguments)
        process.start()
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
