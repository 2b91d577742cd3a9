"""A worker in its own process, at the other end of a pipe."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets import pipes
from fedavg.fleets.worker import JobResult, Worker

#: Seconds that a new process may take to import PyTorch and record its step, on a busy machine.
START_S: Final = 600.0
READY: Final = "ready"


class WorkerProcess:
    """A process that does jobs. `make` makes its worker there, from `given`; a forked process is given the worker."""

    def __init__(
        self,
        method: str,
        make: Callable[..., Worker],
        given: tuple[Any, ...],
        inherited: Sequence[Connection],
        preloaded: Sequence[str] = (),
    ) -> None:
        context: Any = get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(list(preloaded))
        self.pipe, remote = context.Pipe()
        here = [self.pipe, *inherited] if method == "fork" else []
        self.process = context.Process(target=live, args=(make, given, remote, here), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        remote.close()
        self._inbox = pipes.Inbox(self.pipe)

    def wait_until_ready(self) -> bool:
        """Wait until it can be given jobs; False if it is dead. An error of its start is raised."""
        replies: list[Any] | None = []
        while replies == []:
            if not self.pipe.poll(START_S):
                self.kill()
                raise FleetError(f"a worker was not ready after {START_S:.0f} s; expected it sooner: use fewer workers")
            replies = self.receive()
        for reply in replies or ():
            if isinstance(reply, FedAvgError):
                raise reply
        return replies is not None

    def receive(self) -> "list[JobResult | FedAvgError] | None":
        """The replies that are here; None if the worker is dead."""
        return self._inbox.take()

    def kill(self) -> None:
        """End it even if it is stopped or stuck: it has nothing to clean up."""
        self.process.kill()

    def stop(self) -> None:
        self.pipe.close()
        self.kill()
        self.process.join()


def live(make: Callable[..., Worker], given: tuple[Any, ...], pipe: Connection, inherited: list[Connection]) -> None:
    """The life of a worker: do jobs until the server goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C: it finishes the checkpoint first
    for other in inherited:
        other.close()
    keep_freed_memory()
    with one_thread(), suppress(EOFError, OSError):  # the server is gone
        worker, outbox = _made(make, given, pipe), pipes.Outbox(pipe)
        reply: JobResult | FedAvgError
        while worker:
            for job in pipe.recv():
                try:
                    reply = worker.handlers[type(job)](job)
                except Exception as error:
                    reply = worker.failure(error)
                outbox.put(reply)
            outbox.flush()
    os._exit(0)


def _made(make: Callable[..., Worker], given: tuple[Any, ...], pipe: Connection) -> Worker | None:
    try:
        worker = make(*given)
    except FedAvgError as error:
        pipes.send(pipe, error)
        return None
    except Exception:
        pipes.send(pipe, FleetError(f"a worker cannot start:\n{traceback.format_exc()}"))
        return None
    pipes.send(pipe, READY)
    return worker


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process started meanwhile ignores Ctrl-C, even while it imports; this process handles Ctrl-C afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
