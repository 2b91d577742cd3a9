"""What a program of a fleet does on signals: it shuts down cleanly, and loads renewed certificates."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedavg.errors import FedAvgError

log = logging.getLogger("fedavg.server")

#: Reads certificates again, and calls its argument with the new one (PEM) first (`ServerCertificate.reload`).
Reload = Callable[[Callable[[str], None]], None]


def reload_certificates(reload: Reload | None, publish: Callable[[str], None] = lambda _: None) -> None:
    """Load renewed certificates. Unusable ones are logged, and the old ones stay.

    `publish` receives the new certificate before any client sees it.
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
    """SIGTERM and Ctrl-C call `stop`, which shuts the program down cleanly; SIGHUP calls `reload`."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals; a server in another thread is stopped by its hub
        return
    heeded: dict[int, Callable[[], None]] = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if hasattr(signal, "SIGHUP"):  # not on Windows
        # In a thread: the signal may interrupt this thread while it writes a line of the log.
        heeded[signal.SIGHUP] = lambda: threading.Thread(target=reload, name="reload").start()
    previous = {number: signal.signal(number, lambda *_, act=act: act()) for number, act in heeded.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
