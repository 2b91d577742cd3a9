"""Who operates a server, and what each operator may do: tokens with a role, checked at every request.

An operator may do everything; a submitter may submit runs and change those that it submitted; a viewer may look.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, time
from typing import Final

from starlette.responses import JSONResponse, Response

from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.messages import OPERATE, SUBMIT, VIEW, NewRole
from fedavg.fleets.http.server.bodies import parse_body
from fedavg.fleets.http.server.gates import Call, Endpoint, Gate, Handler, SmallBody
from fedavg.fleets.http.server.refusals import Refusal, refused_to
from fedavg.fleets.http.server.storage import storage_failures
from fedavg.fleets.http.server.store.roles import OPERATOR, RoleRow, Roles

log = logging.getLogger("fedavg.fleet")

#: Which roles may use which endpoints: each set is a column of the table in docs/security.md.
OPERATORS: Final = frozenset({OPERATE})
SUBMITTERS: Final = frozenset({OPERATE, SUBMIT})
VIEWERS: Final = frozenset({OPERATE, SUBMIT, VIEW})
#: Seconds for which tokens are cached: strangers who guess tokens do not reach the database, and a token that was
#: withdrawn on one replica is void on all of them after this time.
REMEMBERED_S: Final = 1.0


@dataclass(frozen=True)
class Holder:
    """Who makes a request: a role, and the label of the token, which names the holder in logs and records."""

    role: str
    label: str


class Keyring:
    """The operator's own token, and those with a role."""

    def __init__(self, operator: bytes, roles: Roles) -> None:
        """`operator` is the hash of the operator's own token, which is valid even while the database is down."""
        self._operator, self._roles = operator, roles
        self._known: list[RoleRow] = []
        self._until = -inf

    async def holder(self, token: str) -> Holder | None:
        """The holder of a token; None if it is unknown or no longer valid."""
        if keys.matches(token, self._operator):
            return Holder(OPERATE, OPERATOR)
        if monotonic() >= self._until:
            await self.rows()
        good = [row for row in self._known if row.expires is None or time() < row.expires]
        found = [row for row in good if keys.matches(token, row.hash)]
        return Holder(found[0].role, found[0].label) if found else None

    async def rows(self) -> list[RoleRow]:
        with storage_failures():
            self._known = await asyncio.to_thread(self._roles.all)
        self._until = monotonic() + REMEMBERED_S
        return self._known

    async def add(self, row: RoleRow) -> None:
        if row.label == OPERATOR or row.label in {each.label for each in await self.rows()}:
            raise Refusal("bad-field", f"label: '{row.label}' is taken; expected another, or withdraw that token first")
        with storage_failures():
            await asyncio.to_thread(self._roles.add, row)
        await self.rows()

    async def remove(self, row: RoleRow) -> None:
        with storage_failures():
            await asyncio.to_thread(self._roles.remove, row.hash)
        await self.rows()


class OfRole(Gate):
    """Requires a token with one of these roles."""

    def __init__(self, keyring: Keyring, roles: Collection[str]) -> None:
        self._keyring, self._allowed = keyring, roles

    async def __call__(self, call: Call, then: Handler) -> Response:
        scheme, _, token = call.request.headers.get("authorization", "").partition(" ")
        holder = await self._keyring.holder(token) if scheme.lower() == "bearer" else None
        if holder is None:
            raise Refusal(
                "admin-token",
                "this needs 'Authorization: Bearer' with the operator's token, or one with a role that is still good",
            )
        with refused_to(holder.label):
            self._check(holder)
            return await then(replace(call, role=holder.role, who=holder.label))

    def _check(self, holder: Holder) -> None:
        if holder.role not in self._allowed:
            raise Refusal(
                "wrong-role", f"the token of '{holder.label}' is a {holder.role}'s; this needs one of: "
                f"{', '.join(sorted(self._allowed))}",
            )  # fmt: skip


class RoleEndpoints:
    """What an operator can do with these tokens: make, list, withdraw."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        operator = OfRole(keyring, OPERATORS)
        self.endpoints = [
            Endpoint("GET", "/admin/roles", self._list, [operator]),
            Endpoint("POST", "/admin/roles", self._new, [operator, SmallBody()]),
            Endpoint("POST", "/admin/roles/{id}/withdraw", self._withdraw, [operator]),
        ]

    async def _list(self, _: Call) -> Response:
        return JSONResponse({"roles": [_shown(row, time()) for row in await self._keyring.rows()]})

    async def _new(self, call: Call) -> Response:
        message, token, now = parse_body(NewRole, call.body), keys.new_token(), time()
        expires = None if message.hours is None else int(now + 3600 * message.hours)
        row = RoleRow(keys.token_hash(token), message.role, message.label, int(now), expires)
        await self._keyring.add(row)
        made = {"token": token_id(row.hash), "role": row.role, "label": row.label, "by": call.who}
        log.info("token with a role made", extra=made)
        return JSONResponse({"token": token, "id": token_id(row.hash), "role": row.role, "label": row.label})

    async def _withdraw(self, call: Call) -> Response:
        wanted = str(call.request.path_params["id"])
        found = [row for row in await self._keyring.rows() if token_id(row.hash) == wanted]
        if not found:
            raise Refusal(
                "token-unknown", f"there is no token '{wanted[:20]}' with a role; GET /admin/roles lists them"
            )
        await self._keyring.remove(found[0])
        log.info("token with a role withdrawn", extra={"token": wanted, "label": found[0].label, "by": call.who})
        return JSONResponse({"id": wanted, "withdrawn": True})


def token_id(hashed: bytes) -> str:
    """An id by which operators can name a token; it does not allow using the token."""
    return hashed.hex()[:16]


def _shown(row: RoleRow, now: float) -> dict[str, object]:
    return {
        "id": token_id(row.hash),
        "role": row.role,
        "label": row.label,
        "made": row.made,
        "expires_in_h": None if row.expires is None else round((row.expires - now) / 3600, 2),
    }
