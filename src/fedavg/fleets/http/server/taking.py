"""The run that a server offers, and what it shares with the other runs of a service."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from fedavg.fleets.http.protocol.keys import ReplayGuard
from fedavg.fleets.http.protocol.messages import PlanAnswer, Taken
from fedavg.fleets.http.server.store import ClientRow, Store, allows


@dataclass(frozen=True)
class OfferedRun:
    """A run by its number and its plan."""

    number: int
    plan: str
    plan_digest: str
    task: str

    @cached_property
    def name(self) -> Taken:
        return Taken(self.number, self.plan_digest)

    @cached_property
    def answer(self) -> PlanAnswer:
        return PlanAnswer(run=self.number, plan=self.plan, plan_digest=self.plan_digest)

    def is_for(self, client: ClientRow) -> bool:
        return allows(client, self.task)


@dataclass(frozen=True)
class OfService:
    """What a run shares with the others of its service; without a service it is the only run, number 1."""

    number: int = 1
    #: Whether there may be other runs, before or after.
    many: bool = False
    #: The database of the run, if it differs from that of the clients.
    rounds: Store | None = None
    workers: ThreadPoolExecutor | None = None
    guard: ReplayGuard | None = None
    #: Tells all runs about new or changed clients.
    tell: Callable[[Sequence[ClientRow]], None] | None = None
    #: The plan of the run that a client is at now, if that is not the run with this number.
    another_plan: Callable[[int, int], PlanAnswer | None] = lambda _client, _number: None
    #: Whether a run that a client took up ended without its knowledge: it is told at its next poll.
    missed: Callable[[int, Taken], bool] = lambda _client, _taken: False
    #: Whether a client, which names this run or none in its poll, has left a finished run that it is still assigned to:
    #: another replica has told it.
    moved_on: Callable[[int, int | None], bool] = lambda _client, _number: False
    #: The model of a finished run that is not on offer, by its SHA-256; None if there is none, or it is not published.
    final_model: Callable[[str], bytes | None] = lambda _digest: None
    #: How many runs the service has, by state.
    runs: Callable[[], Mapping[str, int]] | None = None
