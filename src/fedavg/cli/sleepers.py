"""Client processes that come and go by the schedule of a simulated world, with time compressed: real devices that sleep
and die. Nobody tells them or the server: a client that goes is killed in the middle of whatever it does."""

import subprocess
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final, final

from fedavg.world import World
from fedavg.world.presence import HOUR_S, PresentNow

Process = subprocess.Popen[bytes]

#: Seconds between looks at the schedule.
LOOK_S: Final = 0.2
#: Seconds that clients have to end by themselves after the run is over.
GRACE_S: Final = 15.0


@final
class Sleepers:
    """Starts client k by `start(k)` when it is there, and kills it when it is not. An hour of the world takes `hour_s`
    seconds. A client that ended by itself is not started again: the run is over, or it failed and its log says why."""

    def __init__(self, world: World, clients: int, seed: int, hour_s: float, start: Callable[[int], Process]) -> None:
        self._attendance = PresentNow(world.presence(clients, seed))
        self._hour_s, self._start, self._clients = hour_s, start, clients
        self._processes: dict[int, Process] = {}
        self._ended: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sleepers", daemon=True)
        #: How often a client was started, and killed.
        self.started = self.killed = 0
        #: The clients that ended by themselves with an error.
        self.failed: list[int] = []

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """The run is over: those who are there end by themselves, or are killed after a while."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        until = monotonic() + GRACE_S
        for process in self._processes.values():
            try:
                process.wait(max(until - monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _keep(self) -> None:
        began = monotonic()
        while not self._over.wait(LOOK_S):
            self.look((monotonic() - began) / self._hour_s * HOUR_S)

    def look(self, now_s: float) -> None:
        """Bring the processes in line with who is there at this second of the world. Time only goes forward."""
        there = self._attendance.there(now_s)
        for k in range(self._clients):
            process = self._processes.get(k)
            if process is None:
                if there[k] and k not in self._ended:
                    self._processes[k] = self._start(k)
                    self.started += 1
            elif (code := process.poll()) is not None:
                del self._processes[k]
                self._ended.add(k)
                if code:
                    self.failed.append(k)
            elif not there[k]:
                process.kill()
                process.wait()
                del self._processes[k]
                self.killed += 1
