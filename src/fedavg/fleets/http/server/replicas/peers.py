"""Requests between replicas: each is signed for one receiver, is valid once, and has a signed answer.

Each replica generates a key when it joins, and stores its public half in the database, with the certificate that it
listens with. So no secret is shared or stored, and no authority is needed: replicas trust the database.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from itertools import count
from typing import Final

import httpx2 as httpx
from starlette.responses import Response
from starlette.routing import BaseRoute

from fedavg.errors import FleetError
from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.certs import CertifiedKey, no_tls
from fedavg.fleets.http.server.gates import Call, Endpoint, Gate, Handler, OfRound
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.replicas.parts import PartOfGroup, dump_parts, parse_parts
from fedavg.fleets.http.server.store.together import ReplicaRow

#: Seconds that another replica may take to answer: it has all answers in memory.
ANSWER_S: Final = 2.0
SUM_S: Final = 15.0
#: The path under which replicas ask each other; nobody outside needs it.
INTERNAL: Final = "/internal"

Words = Sequence[tuple[int, float, bool]]


class Silent(FleetError):
    """A replica did not answer; `gone` if nobody listens at its address any more."""

    def __init__(self, message: str, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class Peers:
    """Sends requests to other replicas in the name of this one. `key` is its own, `replica` returns its current number;
    `shown` is the certificate for replicas that ask their clients for one."""

    def __init__(
        self,
        key: keys.ClientKey,
        replica: Callable[[], int],
        shown: CertifiedKey | None = None,
        at: str = INTERNAL,
    ) -> None:
        self._key, self._replica, self._shown, self._counter, self._at = key, replica, shown, count(1), at
        #: By replica: the certificate that identifies it, and the HTTP client.
        self._clients: dict[int, tuple[str | None, httpx.Client]] = {}

    def close(self) -> None:
        self.forget(())

    def forget(self, others: Iterable[int]) -> None:
        """Forget all replicas except these."""
        for replica in set(self._clients) - set(others):
            self._clients.pop(replica)[1].close()

    def present(self, of: ReplicaRow) -> Words:
        """What a replica has heard from clients."""
        answer = json.loads(self._ask(of, f"{self._at}/present", ANSWER_S))
        return [(int(k), float(ago), bool(there)) for k, ago, there in answer]

    def parts(self, of: ReplicaRow, round: int, attempt: int) -> list[PartOfGroup]:
        """A replica's part of an attempt's sum."""
        return parse_parts(self._ask(of, f"{self._at}/rounds/{round}/{attempt}/sum", SUM_S))

    def model(self, of: ReplicaRow, digest: str) -> bytes:
        """A model that a replica offers, by the SHA-256 of its bytes; the hash makes a signature unnecessary."""
        try:
            answer = self._client(of).get(f"/v1/models/{digest}", timeout=ANSWER_S)
        except httpx.TransportError as error:
            raise Silent(f"{of.url} does not give model {digest}: {error}") from None
        if answer.status_code != httpx.codes.OK or sha256(answer.content).hexdigest() != digest:
            raise Silent(f"{of.url} does not give model {digest}: {answer.status_code}")
        return bytes(answer.content)

    def _ask(self, of: ReplicaRow, path: str, seconds: float) -> bytes:
        counter, asking = next(self._counter), self._replica()
        fields = keys.SignedFields("GET", path, str(asking), str(of.id), counter, sha256(b"").hexdigest())
        try:
            answer = self._client(of).get(path, headers=keys.headers(self._key, fields), timeout=seconds)
        except httpx.ConnectError as error:
            raise Silent(f"{of.url} does not listen: {error}", gone=True) from None
        except httpx.TransportError as error:
            raise Silent(f"{of.url} does not answer: {error}") from None
        if answer.status_code != httpx.codes.OK:
            raise Silent(f"{of.url}{path} answered {answer.status_code}: {answer.text[:200]}")
        meant = answer_fields(path, of.id, asking, counter, answer.content)
        try:
            keys.verify(meant, answer.headers.get(keys.SIGNATURE, ""), of.key, keys.ReplayGuard(meant.epoch))
        except keys.SignatureRefused as error:
            raise Silent(f"{of.url}{path} answered something that it did not sign: {error}") from None
        return bytes(answer.content)

    def _client(self, of: ReplicaRow) -> httpx.Client:
        known = self._clients.get(of.id)
        if known is None or known[0] != of.certificate:
            verify = _pinned(of.certificate, self._shown) if of.certificate else no_tls()
            known = self._clients[of.id] = (
                of.certificate, httpx.Client(base_url=of.url, verify=verify, trust_env=False),
            )  # fmt: skip
        return known[1]


def _pinned(certificate: str, shown: CertifiedKey | None) -> ssl.SSLContext:
    """Trusts exactly this certificate (two while it is renewed), whatever name it is for; and shows our own
    certificate, if there is one."""
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if shown:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def answer_fields(path: str, by: int, to: int, counter: int, body: bytes) -> keys.SignedFields:
    """What the signature of an answer covers: its receiver, and the request that it answers."""
    return keys.SignedFields("ANSWER", path, str(by), str(to), counter, sha256(body).hexdigest())


class OfReplica(Gate):
    """Requires a signature of a replica, for this one, used once; signs the answer for that replica."""

    def __init__(
        self, key: keys.ClientKey, replica: Callable[[], int], known: Callable[[int], Awaitable[ReplicaRow | None]]
    ) -> None:
        self._key, self._replica, self._known = key, replica, known
        self._guard = keys.ReplayGuard()

    async def __call__(self, call: Call, then: Handler) -> Response:
        request, me = call.request, self._replica()
        if self._guard.epoch != str(me):
            self._guard = keys.ReplayGuard(str(me))
        try:
            fields, signature = keys.parse(request.method, request.url.path, request.headers)
            asking = None if fields.client == keys.ENROL else await self._known(int(fields.client))
            if asking is None:
                raise Refusal("bad-signature", "no replica has this number")
            keys.verify(fields, signature, asking.key, self._guard, asking.id)
        except keys.SignatureRefused as error:
            raise Refusal(error.reason, str(error)) from None
        answer = await then(call)
        meant = answer_fields(request.url.path, me, asking.id, fields.counter, bytes(answer.body))
        answer.headers[keys.SIGNATURE] = self._key.sign(meant)
        return answer


class PeerEndpoints:
    """What a replica answers to others: the `words` of its clients, and its `parts` of the sum of an attempt."""

    def __init__(
        self,
        guard: OfReplica,
        answered: Gate,
        words: Callable[[], Words],
        parts: Callable[[int, int], Sequence[PartOfGroup] | None],
        at: str = INTERNAL,
    ) -> None:
        self._words, self._parts = words, parts
        endpoints = [
            Endpoint("GET", f"{at}/present", self._present, [guard]),
            Endpoint("GET", f"{at}/rounds/{{round}}/{{attempt}}/sum", self._sum, [guard, OfRound()]),
        ]
        self.routes: list[BaseRoute] = [endpoint.route(answered) for endpoint in endpoints]

    async def _present(self, _: Call) -> Response:
        return Response(json.dumps(self._words()).encode(), media_type="application/json")

    async def _sum(self, call: Call) -> Response:
        parts = await asyncio.to_thread(self._parts, call.round, call.attempt)
        if parts is None:
            raise Refusal("wrong-round", "this replica has nothing of that attempt")
        return Response(dump_parts(parts), media_type="application/octet-stream")
