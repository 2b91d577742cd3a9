"""Limits how many uploads are in memory at a time, and how many are read at a time."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from fedavg.fleets.http.server.refusals import Refusal, later

#: Bytes of uploads that may be in memory at a time, and the bytes of an upload that are read before it needs a turn: a
#: client that sends almost nothing takes no turn from others.
UPLOAD_BYTES: Final = 256 * 2**20
BEGINNING: Final = 16 * 1024
#: Uploads that are read fast at a time, and the seconds after which a slow one makes room for the next. Each pass of
#: the event loop reads a piece of every upload that has one, and everything else waits for the pass.
FAST_LANE: Final = 64
FAST_LANE_S: Final = 0.25
#: Seconds that an upload waits for its turn before it is told to come back, and how many may wait: what arrived with
#: the head of each, up to some 300 KB, is already in memory.
TURN_S: Final = 10.0
WAITING: Final = 512


class Turns:
    """Turns to be in memory. Each upload reserves its largest possible size; two always have room, however large.

    If too many wait for a turn, or the turn does not come in time, the answer is a 503.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._taken = self._under_way = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._fast_lane = asyncio.Semaphore(FAST_LANE)

    @property
    def waiting(self) -> int:
        """How many uploads wait for their turn."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        return self._under_way

    @asynccontextmanager
    async def one(self, size: int) -> AsyncIterator[None]:
        await self._wait(size)
        making_room = _Once(self._fast_lane.release)
        timer = asyncio.get_running_loop().call_later(FAST_LANE_S, making_room)
        try:
            yield
        finally:
            timer.cancel()
            making_room()
            self._leave(size)

    async def _wait(self, size: int) -> None:
        busy = Refusal("busy", "too many uploads at a time; come back", later(2))
        if len(self._waiting) >= WAITING:
            raise busy
        try:
            async with asyncio.timeout(TURN_S):
                await self._enter(size)
                try:
                    await self._fast_lane.acquire()
                except BaseException:
                    self._leave(size)
                    raise
        except TimeoutError:
            raise busy from None

    async def _enter(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave(size)  # the turn came at the moment when the wait ended
            else:
                self._waiting.remove((size, turn))
            raise

    def _leave(self, size: int) -> None:
        self._taken -= size
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        """Admit uploads strictly in order of arrival: otherwise a large one might wait for ever."""
        while self._waiting:
            size, turn = self._waiting[0]
            if self._under_way >= 2 and self._taken + size > self._room:
                return
            self._waiting.popleft()
            self._taken += size
            self._under_way += 1
            turn.set_result(None)


class _Once:
    """Makes a call the first time only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call:
            call()
