"""Polls that are held open until there is an answer for their clients."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

#: Held polls that are answered at a time when a round begins, and the seconds between batches (more if the loop is
#: busy): a whole cohort at once would make everyone else wait, and all its updates would arrive together.
WAKE: Final = 20
WAKE_S: Final = 0.005


class HeldPolls:
    """Everything runs in one event loop, except for the function that `waker` returns."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    def waker(self, loop: asyncio.AbstractEventLoop) -> Callable[[Iterable[int]], None]:
        """A function that wakes the polls of some clients, from any thread."""

        def wake(clients: Iterable[int]) -> None:
            with suppress(RuntimeError):  # the loop has ended: no poll waits any more
                loop.call_soon_threadsafe(self._wake, loop, deque(clients))

        return wake

    def _wake(self, loop: asyncio.AbstractEventLoop, clients: deque[int]) -> None:
        woken = 0
        while clients and woken < WAKE:
            for poll in self._waiting.get(clients.popleft(), ()):
                _settle(poll)
                woken += 1
        if clients:
            loop.call_later(WAKE_S, self._wake, loop, clients)

    async def woken(self, k: int, seconds: float) -> None:
        """Wait until there is something for the client, or the time is up. A bare future takes the least memory.

        Only the newest poll of a client is held: an older one belongs to a connection that the client dropped, and
        ending it does not affect the new one.
        """
        loop = asyncio.get_running_loop()
        for older in self._waiting.get(k, ()):
            _settle(older)
        poll: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(k, set())
        waiting.add(poll)
        timer = loop.call_later(seconds, _settle, poll)
        try:
            await poll
        finally:
            timer.cancel()
            waiting.discard(poll)
            if not waiting:
                del self._waiting[k]


def _settle(poll: "asyncio.Future[None]") -> None:
    if not poll.done():
        poll.set_result(None)
