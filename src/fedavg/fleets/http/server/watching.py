"""How a server is doing: whether it is up, the state of the run, and the numbers for monitoring."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from fedavg.fleets.http.server import metrics
from fedavg.fleets.http.server.gates import Call, Endpoint
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.signatures import Elsewhere
from fedavg.fleets.http.server.storage import storage_failures
from fedavg.fleets.http.server.turns import Turns

_TEXT: Final = "text/plain; version=0.0.4"


class Watching:
    """The endpoints that need no token: numbers only, and nothing derived from clients' data."""

    def __init__(
        self,
        hub: Hub,
        requests: metrics.Requests,
        turns: Turns,
        elsewhere: Elsewhere | None,
        runs: Callable[[], Mapping[str, int]] | None,
    ) -> None:
        """`runs` counts the runs of a service by their state."""
        self._hub, self._requests, self._turns, self._elsewhere, self._runs = hub, requests, turns, elsewhere, runs
        self.endpoints = [
            Endpoint("GET", "/healthz", self._health),
            Endpoint("GET", "/metrics", self._metrics),
            Endpoint("GET", "/v1/status", self._status),
        ]

    async def _health(self, _: Call) -> Response:
        stopping = self._hub.shared.stopping
        return Response(b"stopping\n" if stopping else b"ok\n", 503 if stopping else 200, media_type="text/plain")

    async def _metrics(self, _: Call) -> Response:
        return Response(await self.metrics(operator=False), media_type=_TEXT)

    async def all_metrics(self, _: Call) -> Response:
        """All metrics, including those that clients measured: for operators."""
        return Response(await self.metrics(operator=True), media_type=_TEXT)

    async def metrics(self, operator: bool) -> str:
        runs: Mapping[str, int] = {}
        if self._runs is not None:
            with storage_failures():
                runs = await asyncio.to_thread(self._runs)
        uploads = metrics.Uploads(self._turns.waiting, self._turns.under_way)
        return metrics.render(self._hub.status(), self._hub.progress, self._requests, uploads, runs, operator)

    async def _status(self, _: Call) -> Response:
        return JSONResponse(self.status())

    def status(self, operator: bool = False) -> dict[str, Any]:
        """The state of the run; with replicas, of all of them together."""
        own = self._hub.status()
        if operator:
            own |= {"requests_refused": dict(self._requests.by_reason), **self._hub.progress.status()}
        return own if self._elsewhere is None else self._elsewhere.overview(own, operator)
