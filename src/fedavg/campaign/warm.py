"""A process that has imported PyTorch and forks the process of each run: `python -m fedavg.campaign.warm`.

Importing takes a new process two seconds, as long as many a run of a sweep. Standard input carries the paths of orders,
each ended by a zero byte: a child is forked for each and reported as `started PID`; when it ends, as `ended PID CODE`.
When standard input ends, this process ends too, and its children stop by themselves, as they do when the process that
gave their order dies.
"""

import gc
import os
import select
import signal
import sys
from pathlib import Path

from fedavg.campaign import one
from fedavg.errors import FedAvgError


def serve() -> Path | None:
    """Fork a child for each order. Returns the order in a child, and None at the end in the server."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only a handled signal wakes us up
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()  # keeps imported objects in memory pages that children share
    rest = b""
    while True:
        ready, _, _ = select.select([sys.stdin, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_of_the_ended()
        if sys.stdin in ready:
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                return None
            *paths, rest = (rest + data).split(b"\0")
            for path in paths:
                order = Path(os.fsdecode(path))
                pid = _fork()
                if not pid:
                    _become_independent(order, woken, wake)
                    return order
                _tell(f"started {pid}")


def _fork() -> int:
    """The child's process id; 0 in the child."""
    if not hasattr(os, "fork"):
        raise FedAvgError("this system cannot fork; expected a new process for each run")
    return os.fork()


def _tell_of_the_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def _tell(text: str) -> None:
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


def _become_independent(order: Path, *pipes: int) -> None:
    """A child does not read the server's input, and writes to the log of its order."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pipe in pipes:
        os.close(pipe)
    os.setsid()
    log = os.open(order.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, sys.stdin), (log, sys.stdout), (log, sys.stderr)):
        os.dup2(source, target.fileno())
    os.close(log)
    os.close(nothing)


def main() -> int:
    order = serve()
    return one.main(order) if order else 0


if __name__ == "__main__":
    sys.exit(main())
