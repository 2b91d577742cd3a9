"""What the parts of a hub share: one lock, the stop signal, and a way to wake held polls."""

from collections.abc import Callable, Iterable
from threading import Condition
from time import monotonic


class Shared:
    """Passed to every part. `changed` guards them all: it is reentrant, and never held for long."""

    def __init__(self) -> None:
        #: Notified when code that waits for clients, updates or the end should check again.
        self.changed = Condition()
        self.stopping = False
        #: Another replica leads now: the server loop here has to end.
        self.deposed = False
        #: Wakes the held polls of some clients; set by the application once its event loop runs.
        self.wake: Callable[[Iterable[int]], None] = lambda _: None

    @property
    def over(self) -> bool:
        """Whether the server loop has to end."""
        return self.stopping or self.deposed

    def depose(self) -> None:
        with self.changed:
            self.deposed = True
            self.changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Sleep, unless the server loop has to end."""
        until = monotonic() + seconds
        with self.changed:
            while not self.over and (left := until - monotonic()) > 0:
                self.changed.wait(left)
