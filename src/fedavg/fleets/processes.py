"""A worker in a process of its own, forked from the server's, at the other end of a pipe."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError
from fedavg.fleets import pipes
from fedavg.fleets.worker import Job, Result, Worker
from fedavg.setup import Setup


class WorkerProcess:
    """A forked worker at the other end of a pipe."""

    def __init__(self, setup: Setup, worker: Worker, siblings: Iterable["WorkerProcess"]) -> None:
        context = get_context("fork")
        self.pipe, remote = context.Pipe()
        inherited = [self.pipe, *(sibling.pipe for sibling in siblings)]
        self.process = context.Process(target=serve, args=(setup, worker, remote, inherited), daemon=True)
        self.process.start()
        remote.close()
        self._inbox = pipes.Inbox(self.pipe)

    def send(self, job: Job) -> None:
        """Hand over a job; that a worker is dead shows when its reply is asked for."""
        with suppress(OSError):
            self.pipe.send(job)

    def receive(self) -> "list[Result | FedAvgError] | None":
        """The replies that are here; None if the worker is dead."""
        return self._inbox.take()

    def kill(self) -> None:
        """Ends it even if it is stopped or stuck: it holds nothing that it would have to put away."""
        self.process.kill()

    def stop(self) -> None:
        self.pipe.close()
        self.kill()
        self.process.join()


def serve(setup: Setup, worker: Worker, pipe: Connection, inherited: list[Connection]) -> None:
    """The life of a worker: do jobs until the server goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle: it finishes the checkpoint first
    for other in inherited:  # a copy of the server's end would keep this process alive after the server
        other.close()
    keep_freed_memory()
    with one_thread(), suppress(EOFError, OSError):  # the server is gone
        while True:
            pipes.send(pipe, worker.attempt(pipe.recv()))
    os._exit(0)
