"""What a program of a fleet does on signals: it ends in good order, and takes over certificates that were renewed."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedavg.errors import FedAvgError

log = logging.getLogger("fedavg.server")

#: Reads certificates again; is told what to do with the new one, PEM, before it is shown (`ServerCertificate.reload`).
Reload = Callable[[Callable[[str], None]], None]


def reload_certificates(reload: Reload | None, publish: Callable[[str], None] = lambda _: None) -> None:
    """Take over certificates that were renewed. What cannot be used is told, and the ones before stay.

    `publish` is told the new one before it is shown.
    """
    if reload is None:
        log.warning("nothing to reload: this server has no certificate")
        return
    try:
        reload(publish)
    except FedAvgError as error:
        log.error("certificates not reloaded", extra={"detail": str(error)})
    else:
        log.info("certificates reloaded")


@contextmanager
def heeding_signals(stop: Callable[[], None], reload: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C call `stop`, which ends the program in good order; SIGHUP calls `reload`."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only a program's main thread is told of signals; what runs a server elsewhere stops it by the hub
        return
    heeded: dict[int, Callable[[], None]] = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if hasattr(signal, "SIGHUP"):  # not on Windows
        # In a thread: a signal may come while this one writes a line of the log.
        heeded[signal.SIGHUP] = lambda: threading.Thread(target=reload, name="reload").start()
    previous = {number: signal.signal(number, lambda *_, act=act: act()) for number, act in heeded.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
