"""What the parts of a hub have in common: one lock, word that the server is to stop, a way to wake held polls."""

from collections.abc import Callable, Iterable
from threading import Condition
from time import monotonic


class Shared:
    """Handed to every part. `changed` guards them all: it is reentrant, and never held for long."""

    def __init__(self) -> None:
        #: Notified when whoever waits for clients, updates or the end should look again.
        self.changed = Condition()
        self.stopping = False
        #: Wakes the held polls of some clients; set by the application once its event loop runs.
        self.wake: Callable[[Iterable[int]], None] = lambda _: None

    def pause(self, seconds: float) -> None:
        """Sleep, unless the server is to stop."""
        until = monotonic() + seconds
        with self.changed:
            while not self.stopping and (left := until - monotonic()) > 0:
                self.changed.wait(left)
