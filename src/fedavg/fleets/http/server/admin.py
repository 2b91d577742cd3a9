"""What the operator can do while a server runs, with a token of its own that clients never see."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import NewToken
from fedavg.fleets.http.server.app import MESSAGE_BYTES, FleetApp, Refusal, parse_body, read_body
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.store import Store


class Admin:
    """Status, join tokens, revocation and an orderly stop."""

    def __init__(self, app: FleetApp, hub: Hub, store: Store, token_hash: bytes, stop: Callable[[], None]) -> None:
        self._app, self._hub, self._store, self._token_hash, self._stop_server = app, hub, store, token_hash, stop
        self.routes: list[BaseRoute] = [
            self._route("GET", "/admin/status", self._status),
            self._route("GET", "/admin/clients", self._clients),
            self._route("POST", "/admin/clients/{k}/revoke", self._revoke),
            self._route("POST", "/admin/tokens", self._new_token),
            self._route("POST", "/admin/stop", self._stop),
        ]

    def _route(self, method: str, path: str, handler: Callable[[Request], Any]) -> Route:
        async def checked(request: Request) -> Response:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not keys.matches(token, self._token_hash):
                raise Refusal("admin-token", "this needs 'Authorization: Bearer' with the admin token")
            response: Response = await handler(request)
            return response

        return Route(path, self._app.guarded(checked), methods=[method])

    async def _status(self, _: Request) -> Response:
        return JSONResponse(self._hub.status() | {"requests_refused": dict(self._app.requests.by_reason)})

    async def _clients(self, _: Request) -> Response:
        rows = await self._app.blocking(self._store.clients)
        return JSONResponse(
            [{"client": r.k, "name": r.name, "examples": r.examples, "revoked": bool(r.revoked)} for r in rows]
        )

    async def _revoke(self, request: Request) -> Response:
        text = str(request.path_params["k"])
        k = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
        row = self._hub.client(k)
        if row is None:
            raise Refusal("client-unknown", f"there is no client '{text[:20]}'")
        await self._app.blocking(self._store.revoke, k)
        self._hub.know([await self._app.blocking(self._store.client, k)])
        return JSONResponse({"client": k, "revoked": True})

    async def _new_token(self, request: Request) -> Response:
        message = parse_body(NewToken, await read_body(request, MESSAGE_BYTES))
        token = keys.new_token()
        await self._app.blocking(
            self._store.add_token, keys.token_hash(token), message.uses, message.label, message.client
        )
        return JSONResponse({"token": token, "uses": message.uses, "client": message.client})

    async def _stop(self, _: Request) -> Response:
        self._stop_server()
        return JSONResponse({"stopping": True})
