"""A live fleet as its server reports it. This process polls the server every other second; the browser does not."""

from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from time import time
from typing import Any, Final

import httpx2 as httpx

from fedavg.fleets.http.protocol.certs import client_context, no_tls

#: Seconds between requests, and the timeout of an answer.
ASK_S: Final = 2.0
ANSWER_S: Final = 10.0
#: How many moments are remembered: one hour, and as many more for the window over which the pace is measured.
MOMENTS: Final = 1800
#: The most devices that are listed.
MOST_LISTED: Final = 500
#: The fields shown of a device; nothing else of an answer is passed on.
_SHOWN: Final = ("client", "name", "examples", "revoked", "approved", "enrolled")


@dataclass(frozen=True)
class Moment:
    """The fleet at a time (seconds since 1970): rounds done, devices present, and how many of those are at work."""

    at: float
    committed: int
    present: int
    at_work: int


class LiveFleet:
    """Thread-safe. With the operator's token more is known: refused requests, and who is enrolled."""

    def __init__(self, url: str, token: str | None, ca: Path | None) -> None:
        self.url, self._token = url.rstrip("/"), token
        self.version = 0
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        verify = client_context(ca) if url.startswith("https:") else no_tls()
        self._http = httpx.Client(verify=verify, headers=headers, timeout=ANSWER_S)
        self._lock = Lock()
        self._answer: dict[str, Any] = {"url": self.url, "operator": token is not None, "problem": "not asked yet"}
        self._moments: deque[Moment] = deque(maxlen=MOMENTS)
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._http.close()

    def answer(self) -> dict[str, Any]:
        with self._lock:
            moments = list(self._moments)
            return self._answer | {"moments": [asdict(each) for each in _some(moments)], "pace": pace(moments)}

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._stop.wait(ASK_S)

    def ask(self) -> None:
        """Ask the server once."""
        try:
            found = self._asked()
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            found = {"problem": f"{self.url} does not answer as a fedavg server: {error or type(error).__name__}"}
        with self._lock:
            self._answer = {"url": self.url, "operator": self._token is not None, **found}
            if status := found.get("status"):
                self._moments.append(moment(status, time()))
            self.version += 1

    def _asked(self) -> dict[str, Any]:
        status = self._get("/admin/status" if self._token else "/v1/status")
        if "error" in status:
            return {"problem": f"the server refused ({status['error']}): {status.get('detail', '')}"}
        clients = self._get("/admin/clients").get("clients") if self._token else None  # a viewer's token may not see it
        listed = None if clients is None else [{name: row.get(name) for name in _SHOWN} for row in clients]
        return {
            "problem": None,
            "status": status,
            "clients": None if listed is None else listed[:MOST_LISTED],
            "enrolled": None if listed is None else len(listed),
        }

    def _get(self, path: str) -> dict[str, Any]:
        reply = self._http.get(self.url + path)
        if reply.status_code == httpx.codes.NOT_FOUND and path.startswith("/admin/"):
            raise ValueError(
                f"{path} is not there; expected the operator's address: a replica's own, or that of --admin-listen"
            )
        answer = reply.json()
        if not isinstance(answer, dict):
            raise ValueError("expected a JSON object")
        return answer


def moment(status: dict[str, Any], now: float) -> Moment:
    """What a status says, as numbers."""
    current = status["round"] or {}
    working = current.get("invited", 0) - current.get("accepted", 0) - current.get("failed", 0)
    at_work = working if current.get("phase") == "collecting" else 0
    return Moment(now, int(status["committed"]), int(status["present"]), max(0, int(at_work)))


def pace(moments: list[Moment]) -> float | None:
    """Rounds per hour over the remembered time; None until a round has ended in it.

    >>> pace([Moment(0.0, 3, 5, 0), Moment(1800.0, 8, 5, 0)])
    10.0
    """
    if len(moments) < 2 or moments[-1].committed <= moments[0].committed:
        return None
    return 3600 * (moments[-1].committed - moments[0].committed) / (moments[-1].at - moments[0].at)


def _some(moments: list[Moment], most: int = 400) -> list[Moment]:
    step = max(1, -(-len(moments) // most))
    return moments[::-1][::step][::-1]
