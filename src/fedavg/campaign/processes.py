"""The processes of runs: forked from one that has imported PyTorch (`warm.py`), or, if that is impossible, new ones."""

import os
import select
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import IO, Final, Protocol, final

#: What ends a process at once; Windows has no such signal.
KILLED: Final = int(getattr(signal, "SIGKILL", 9))
#: How long to wait before looking again whether a process has ended.
_LOOK_S: Final = 0.02


class RunProcess(Protocol):
    """A process at work on an order; the interface of `subprocess.Popen`."""

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def wait(self) -> int: ...


class RunStarter(ABC):
    """Starts processes for orders."""

    @abstractmethod
    def start(self, order: Path) -> RunProcess:
        """A process at work on the order in this file."""

    @abstractmethod
    def close(self) -> None:
        """No more processes are started, and all have ended."""


def run_starter() -> RunStarter:
    """By fork if that is the system's default; macOS has it, but its libraries do not survive it."""
    return ForkedRuns() if hasattr(os, "fork") and sys.platform != "darwin" else NewRuns()


@final
class NewRuns(RunStarter):
    """A new Python for every run."""

    def start(self, order: Path) -> RunProcess:
        with order.with_suffix(".log").open("wb") as log:
            return _python("fedavg.campaign.one", [str(order)], subprocess.DEVNULL, log, log)

    def close(self) -> None:
        pass


@final
class ForkedRuns(RunStarter):
    """Forks every run from one process, started with the first run. If that process dies, another replaces it."""

    def __init__(self) -> None:
        self._warm: _Warm | None = None

    def start(self, order: Path) -> RunProcess:
        if self._warm is None or self._warm.is_gone:
            self.close()
            self._warm = _Warm()
        return self._warm.start(order)

    def close(self) -> None:
        if self._warm:
            self._warm.close()


class _Warm:
    """The process that forks, at the other end of two pipes."""

    def __init__(self) -> None:
        self._process = _python("fedavg.campaign.warm", [], subprocess.PIPE, subprocess.PIPE, None)
        assert self._process.stdin
        assert self._process.stdout
        self._orders, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._rest = b""
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        self.is_gone = False

    def start(self, order: Path) -> "RunProcess":
        with suppress(BrokenPipeError):
            os.write(self._orders, os.fsencode(order) + b"\0")  # no path contains this byte
        while not self._started and not self.is_gone:
            self._hear()
        return _Child(self, self._started.pop(0)) if self._started else _Child(self, None)

    def code_of(self, pid: int) -> int | None:
        """The exit code of a child, once it has ended. If the forking process died, the child counts as killed."""
        while not self.is_gone and select.select([self._answers], [], [], 0)[0]:
            self._hear()
        return self._codes.get(pid, -KILLED if self.is_gone else None)

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        self._process.wait()

    def _hear(self) -> None:
        data = os.read(self._answers, 1 << 16)
        if not data:
            self.is_gone = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.split())

    def _take(self, words: Sequence[bytes]) -> None:
        match words:
            case [b"started", pid]:
                self._started.append(int(pid))
            case [b"ended", pid, code]:
                self._codes[int(pid)] = int(code)


@dataclass
class _Child:
    """A run's process whose parent is another process."""

    _warm: _Warm
    #: None: it was never started.
    _pid: int | None
    returncode: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = -KILLED if self._pid is None else self._warm.code_of(self._pid)
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            sleep(_LOOK_S)
        return code


def _python(
    module: str, arguments: Sequence[str], stdin: int, stdout: int | IO[bytes], stderr: int | IO[bytes] | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        start_new_session=True,  # the process that gave the order forwards Ctrl-C
    )
