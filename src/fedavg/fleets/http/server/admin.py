"""What the operator can do while a server runs. It takes a separate token that clients never see."""

import logging
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from time import time

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import NewToken, Selection
from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.bodies import parse_body
from fedavg.fleets.http.server.gates import Call, Endpoint, SmallBody
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.roles import OPERATORS, VIEWERS, Keyring, OfRole, RoleEndpoints, token_id
from fedavg.fleets.http.server.store import ClientRow, Store, TokenRow
from fedavg.fleets.http.server.store.sightings import Sighting

log = logging.getLogger("fedavg.fleet")


class Admin:
    """Status, privacy spent, join tokens, approval, revocation and an orderly stop."""

    def __init__(self, app: Callable[[], FleetApp], store: Store, keyring: Keyring, stop: Callable[[], None]) -> None:
        """`app` returns the application of the run on offer now."""
        self._of_run, self._store, self._stop_server = app, store, stop
        operator, viewer, small = OfRole(keyring, OPERATORS), OfRole(keyring, VIEWERS), SmallBody()
        endpoints = [
            Endpoint("GET", "/admin/status", self._status, [viewer]),
            Endpoint("GET", "/admin/ledger", self._ledger, [viewer]),
            Endpoint("GET", "/admin/metrics", self._metrics, [viewer]),
            Endpoint("GET", "/admin/clients", self._clients, [operator]),
            Endpoint("POST", "/admin/clients/revoke", self._revoke, [operator, small]),
            Endpoint("POST", "/admin/clients/approve", self._approve, [operator, small]),
            Endpoint("GET", "/admin/tokens", self._tokens, [operator]),
            Endpoint("POST", "/admin/tokens", self._new_token, [operator, small]),
            Endpoint("POST", "/admin/tokens/{id}/withdraw", self._withdraw, [operator]),
            Endpoint("POST", "/admin/stop", self._stop, [operator]),
            *RoleEndpoints(keyring).endpoints,
        ]
        self.routes: list[BaseRoute] = [endpoint.route(app().answered) for endpoint in endpoints]

    @property
    def _app(self) -> FleetApp:
        return self._of_run()

    @property
    def _hub(self) -> Hub:
        return self._of_run().hub

    async def _status(self, _: Call) -> Response:
        return JSONResponse(self._app.status(operator=True))

    async def _metrics(self, call: Call) -> Response:
        return await self._app.watching.all_metrics(call)

    async def _ledger(self, _: Call) -> Response:
        """The privacy cost of each committed round, as stored with the round."""
        return JSONResponse({"ledger": await self._app.blocking(self._app.ledger)})

    async def _clients(self, _: Call) -> Response:
        rows: list[ClientRow] = await self._app.blocking(self._store.clients)
        await self._app.hear_of_all()
        sightings: dict[int, Sighting] = await self._app.blocking(self._hub.sightings.all)
        states = self._hub.presence.states()
        shown = [_shown_client(row, states.get(row.k, "away"), sightings.get(row.k, Sighting())) for row in rows]
        return JSONResponse({"clients": shown})

    async def _revoke(self, call: Call) -> Response:
        return await self._change(call, self._store.revoke, "revoked")

    async def _approve(self, call: Call) -> Response:
        return await self._change(call, self._store.approve, "approved")

    async def _change(self, call: Call, change: Callable[[list[int]], None], done: str) -> Response:
        """Revoke or approve the clients that match a selection; the answer lists them."""
        selection = parse_body(Selection, call.body)
        selected = _selected(selection, time())
        rows: list[ClientRow] = await self._app.blocking(self._store.clients)
        chosen = [row.k for row in rows if selected(row)]
        await self._app.blocking(change, chosen)
        fresh = await self._app.blocking(self._store.clients)
        self._app.know([row for row in fresh if row.k in set(chosen)])
        for k in chosen:
            log.warning(f"client {done}", extra={"client": k, "by": call.who})
        return JSONResponse({"clients": chosen})

    async def _tokens(self, _: Call) -> Response:
        rows: list[TokenRow] = await self._app.blocking(self._store.tokens)
        return JSONResponse({"tokens": [_shown_token(row, time()) for row in rows]})

    async def _new_token(self, call: Call) -> Response:
        message = parse_body(NewToken, call.body)
        token = keys.new_token()
        expires = None if message.hours is None else int(time() + 3600 * message.hours)
        hashed = keys.token_hash(token)
        await self._app.blocking(self._store.add_token, hashed, message.uses, message.label, message.client, expires)
        log.info("token made", extra={"token": token_id(hashed), "uses": message.uses, "by": call.who})
        return JSONResponse({"token": token, "id": token_id(hashed), "uses": message.uses, "client": message.client})

    async def _withdraw(self, call: Call) -> Response:
        """No more clients can enrol with this token; those that did stay (revoke them by the token's id)."""
        wanted = str(call.request.path_params["id"])
        rows: list[TokenRow] = await self._app.blocking(self._store.tokens)
        found = [row.hash for row in rows if token_id(row.hash) == wanted]
        for hashed in found:
            await self._app.blocking(self._store.remove_token, hashed)
        if not found:
            raise Refusal("token-unknown", f"there is no token '{wanted[:20]}'; GET /admin/tokens lists them")
        log.info("token withdrawn", extra={"token": wanted, "by": call.who})
        return JSONResponse({"id": wanted, "withdrawn": True})

    async def _stop(self, call: Call) -> Response:
        log.info("stop requested", extra={"by": call.who})
        self._stop_server()
        return JSONResponse({"stopping": True})


def _shown_client(row: ClientRow, state: str, sighting: Sighting) -> dict[str, object]:
    return {
        "client": row.k,
        "name": row.name,
        "last_seen": sighting.seen or None,
        "examples": row.examples,
        "state": state,
        "failures": sighting.failures,
        "last_failure": sighting.failure,
        "version": sighting.version,
        "revoked": row.revoked,
        "approved": row.approved,
        "token": token_id(row.token),
        "address": row.address,
        "enrolled": row.enrolled,
    }


def _shown_token(row: TokenRow, now: float) -> dict[str, object]:
    return {
        "id": token_id(row.hash),
        "label": row.label,
        "uses_left": row.uses,
        "used": row.used,
        "client": row.client,
        "expires_in_h": None if row.expires is None else round((row.expires - now) / 3600, 2),
    }


def _selected(selection: Selection, now: float) -> Callable[[ClientRow], bool]:
    """A test of whether a client meets every condition of a selection. An empty selection is refused: it must not
    match everyone."""
    checks: list[Callable[[ClientRow], bool]] = []
    if (k := selection.client) is not None:
        checks.append(lambda row: row.k == k)
    if (token := selection.token) is not None:
        checks.append(lambda row: token_id(row.token) == token)
    if selection.address is not None:
        network = _network(selection.address)
        checks.append(lambda row: _within(row.address, network))
    if (newer := selection.newer_than_h) is not None:
        checks.append(lambda row: row.enrolled > now - 3600 * newer)
    if (older := selection.older_than_h) is not None:
        checks.append(lambda row: row.enrolled <= now - 3600 * older)
    if not checks:
        raise Refusal("bad-field", "got a selection of nothing; expected a client, token, address or age")
    return lambda row: all(check(row) for check in checks)


Network = IPv4Network | IPv6Network


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise Refusal("bad-field", f"address: got '{text[:50]}'; expected one such as 10.0.0.7 or 10.0.0.0/8") from None


def _within(address: str, network: Network) -> bool:
    try:
        return ip_address(address) in network
    except ValueError:  # enrolled before addresses were recorded, or through a socket without one
        return False
