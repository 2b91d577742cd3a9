"""What replicas know of a request to one run of a service: the service's part of it, and the run's.

Clients belong to the service, and so do the epoch and the counters of their requests; rounds belong to the run.
"""

from collections.abc import Mapping
from typing import Any

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.server.signatures import Elsewhere


class OfRun(Elsewhere):
    """`service` is asked about clients and their signatures, `run` about rounds; each is a replica among others."""

    def __init__(self, service: Elsewhere, run: Elsewhere) -> None:
        self._service, self._run = service, run

    @property
    def epoch(self) -> str:
        return self._service.epoch

    async def find(self) -> None:
        await self._service.find()

    async def use(self, k: int, fields: keys.SignedFields) -> None:
        await self._service.use(k, fields)
        await self._run.catch_up()

    async def catch_up(self) -> None:
        await self._service.catch_up()
        await self._run.catch_up()

    async def hear_of_all(self) -> None:
        await self._run.hear_of_all()

    def overview(self, own: Mapping[str, Any], operator: bool) -> dict[str, Any]:
        return self._run.overview(own, operator)
