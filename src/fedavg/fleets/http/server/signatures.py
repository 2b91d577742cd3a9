"""Who sent a request: the client whose key signed it. Each signature is accepted once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.server.bodies import check_body
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.store import ClientRow

#: Stands in for the key of an unknown client: its private half was never kept.
NOBODYS_KEY: Final = keys.ClientKey.generate().public


class Elsewhere(ABC):
    """What a replica cannot know about a request by itself: other replicas may have seen it before."""

    @property
    @abstractmethod
    def epoch(self) -> str:
        """The epoch that all replicas share."""

    @abstractmethod
    async def find(self) -> None:
        """Learn of clients that are unknown here: they may have just enrolled on another replica."""

    @abstractmethod
    async def use(self, k: int, fields: keys.SignedFields) -> None:
        """Use up a client's counter. Afterwards this replica knows all that any replica did before the request."""

    @abstractmethod
    async def catch_up(self) -> None:
        """Afterwards this replica knows everything that any replica did before the call."""

    @abstractmethod
    async def hear_of_all(self) -> None:
        """Learn from the other replicas which clients are there."""

    @abstractmethod
    def overview(self, own: Mapping[str, Any], operator: bool) -> dict[str, Any]:
        """The status of all replicas together, given that of this one."""


class Signatures:
    """Checks the signatures of requests against the clients enrolled here or `elsewhere`."""

    def __init__(
        self, presence: Presence, elsewhere: Elsewhere | None = None, guard: keys.ReplayGuard | None = None
    ) -> None:
        """`guard` may be shared by several runs: a request that one has accepted, no other accepts again."""
        self._presence, self._elsewhere = presence, elsewhere
        self._own = guard or keys.ReplayGuard()

    @property
    def epoch(self) -> str:
        return self._elsewhere.epoch if self._elsewhere else self._own.epoch

    async def signed(self, request: Request) -> tuple[keys.SignedFields, ClientRow]:
        """The client that signed the request, once. The body is not needed yet: the signature covers its digest."""
        if self._elsewhere is None:
            return self.authenticated(request)
        claimed, _ = self._signed_fields(request)
        if claimed.client != keys.ENROL and self._presence.client(int(claimed.client)) is None:
            await self._elsewhere.find()
        fields, client = self.authenticated(request, counted=False)
        try:
            await self._elsewhere.use(client.k, fields)
        except keys.SignatureRefused as error:
            raise _refusal(error) from None
        self.check_revoked(client.k)
        return fields, client

    def authenticated(self, request: Request, counted: bool = True) -> tuple[keys.SignedFields, ClientRow]:
        """The client that signed the request; if `counted`, its counter is used up here."""
        fields, signature = self._signed_fields(request)
        client = self._presence.client(int(fields.client)) if fields.client != keys.ENROL else None
        if client is None:  # same path for all, so that strangers cannot learn who is or was enrolled
            self._verify(fields, signature, NOBODYS_KEY, None)
            raise Refusal("bad-signature", "nobody is enrolled under this number")
        self._verify(fields, signature, client.key, client.k if counted else None)
        self.check_revoked(client.k)
        return fields, client

    def check_revoked(self, k: int) -> None:
        client = self._presence.client(k)
        if client is None or client.revoked:
            raise Refusal("revoked", "this client's enrolment was revoked by the operator")

    def check_signature(self, request: Request, key: bytes, counted_as: int | None, body: bytes) -> None:
        fields, signature = self._signed_fields(request)
        self._verify(fields, signature, key, counted_as)
        check_body(fields, body)

    def _signed_fields(self, request: Request) -> tuple[keys.SignedFields, str]:
        """The signature covers the target as sent, before it is decoded or the host is looked at."""
        path, query = request.scope["raw_path"], request.scope["query_string"]
        target = (path + b"?" + query if query else path).decode("latin-1")
        try:
            return keys.parse(request.method, target, request.headers)
        except keys.SignatureRefused as error:
            raise Refusal(error.reason, str(error)) from None

    def _verify(self, fields: keys.SignedFields, signature: str, key: bytes, counted_as: int | None) -> None:
        try:
            keys.verify(fields, signature, key, self._guard, counted_as)
        except keys.SignatureRefused as error:
            raise _refusal(error) from None

    @property
    def _guard(self) -> keys.ReplayGuard:
        return keys.ReplayGuard(self._elsewhere.epoch) if self._elsewhere else self._own


def _refusal(error: keys.SignatureRefused) -> Refusal:
    told = {keys.COUNTER: str(error.highest)} if error.highest is not None else None
    return Refusal(error.reason, str(error), told)
