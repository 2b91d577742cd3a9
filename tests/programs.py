"""`fedavg` as a command, or any script, in its own process, without the two seconds that importing PyTorch takes.

One process has imported it (template.py) and forks itself for every command (multiprocessing's fork server). Tests of a
process's very start (its imports, how the interpreter was called, how it ends by an error) need a real one:
`sys.executable`.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running, set_forkserver_preload
from pathlib import Path
from typing import Protocol

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


#: What a process is told to do first, by its own code: to lead a session, to heed Ctrl-C, to be another user.
Preparation = Callable[[], object]
#: For a process that handles Ctrl-C even where the tests ignore it.
heed_ctrl_c: Preparation = partial(signal.signal, signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Surroundings:
    """What a command finds when it starts."""

    out: Path
    err: Path
    cwd: str
    env: dict[str, str]
    prepare: tuple[Preparation, ...]

    def enter(self) -> None:
        for stream, path in ((sys.stdout, self.out), (sys.stderr, self.err)):
            with path.open("wb") as file:
                os.dup2(file.fileno(), stream.fileno())
        os.chdir(self.cwd)
        os.environ.clear()
        os.environ.update(self.env)
        named = self.env.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in named if path not in ("", *sys.path)]
        for step in self.prepare:
            step()


class Task(Protocol):
    """What a process does in its surroundings: `_command` or `_script`."""

    def __call__(self, words: list[str], surroundings: Surroundings) -> None: ...


def start(
    *words: object,
    out: Path,
    err: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    prepare: Iterable[Preparation] = (),
) -> Forked:
    """A running command that writes its output to files."""
    return _begin(_command, words, Surroundings(out, err, str(cwd or Path.cwd()), dict(env or os.environ), (*prepare,)))


def start_script(
    code: str,
    *words: object,
    out: Path,
    err: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    prepare: Iterable[Preparation] = (),
) -> Forked:
    """The same of Python code, as `python -c CODE WORDS...`."""
    there = Surroundings(out, err, str(cwd or Path.cwd()), dict(env or os.environ), (*prepare,))
    return _begin(_script, (code, *words), there)


def fedavg(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    prepare: Iterable[Preparation] = (),
    timeout: float = 240,
) -> "subprocess.CompletedProcess[str]":
    """Run a command; returns its exit code and output."""
    return _finished(start, words, timeout, cwd=cwd, env=env, prepare=prepare)


def script(
    code: str,
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    prepare: Iterable[Preparation] = (),
    timeout: float = 240,
) -> "subprocess.CompletedProcess[str]":
    """Run Python code; returns its exit code and output."""
    return _finished(start_script, (code, *words), timeout, cwd=cwd, env=env, prepare=prepare)


def _finished(
    begin: Callable[..., Forked], words: tuple[object, ...], timeout: float, **there: object
) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = begin(*words, out=out, err=err, **there)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired([*map(str, words)], timeout, out.read_bytes(), err.read_bytes())
        return subprocess.CompletedProcess(words, process.exitcode or 0, out.read_text(), err.read_text())


def _begin(task: Task, words: tuple[object, ...], surroundings: Surroundings) -> Forked:
    process = Forked(target=task, args=(list(map(str, words)), surroundings))
    process.start()
    return process


def _command(words: list[str], surroundings: Surroundings) -> None:
    surroundings.enter()
    from fedavg.cli import main

    sys.argv = ["fedavg", *words]
    main()


def _script(words: list[str], surroundings: Surroundings) -> None:
    surroundings.enter()
    code, *rest = words
    sys.argv = ["-c", *rest]
    exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
