"""Polls that are held open until there is something for their clients."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

#: Held polls that are answered at a time when a round begins, and the seconds between (more if the loop is busy): all
#: of a cohort at once would keep everyone else waiting, and come back with their updates at once.
WAKE: Final = 20
WAKE_S: Final = 0.005


class HeldPolls:
    """All of it happens in one event loop, except for what `waker` gives."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    def waker(self, loop: asyncio.AbstractEventLoop) -> Callable[[Iterable[int]], None]:
        """What wakes the polls of some clients, from any thread."""

        def wake(clients: Iterable[int]) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
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
        """Until there is something for the client, or the time is over. A bare future is what the least memory holds.

        One poll of a client is held, the newest: an older one is of a connection that it has given up, and its end
        leaves the new one be.
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
