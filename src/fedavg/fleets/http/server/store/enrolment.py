"""The steps of an enrolment, inside a transaction that writes."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, and_, exists, func, literal, or_, select, union_all

from fedavg.fleets.http.server.store import rows as limits
from fedavg.fleets.http.server.store.rows import ClientRow, EnrolRefused, TokenRow
from fedavg.fleets.http.server.store.schema import clients, tokens
from fedavg.fleets.http.server.store.sealed import insert_row, one_row, update_rows


@dataclass(frozen=True)
class Applicant:
    """A client that wants to enrol: its key, its number of examples, and the client number it asks for, if any."""

    key: bytes
    examples: int
    name: str
    client: int | None
    address: str
    approved: bool
    tasks: tuple[str, ...] | None = None


def enrolled(connection: Connection, token_hash: bytes, who: Applicant, most: int | None, now: float) -> ClientRow:
    """The applicant's row: a new one, for one use of the token, or the one that it already has."""
    there = one_row(connection, clients, clients.c.key == who.key)
    wanted = who.client
    if there is None or bytes(there.token) != token_hash:
        wanted = _agreed_number(_usable_token(connection, token_hash, now).client, wanted)
    if there is not None:
        return _welcome_back(connection, client_row(there), who, wanted)
    k = _checked_number(connection, _free_number(connection) if wanted is None else wanted, most)
    row = ClientRow(k, who.key, who.examples, who.name, False, token_hash, int(now), who.address, who.approved)
    row = replace(row, tasks=who.tasks)
    values = asdict(row) | {"revoked": 0, "approved": int(who.approved), "changed": next_change(connection)}
    values["tasks"] = _listed(who.tasks)
    insert_row(connection, clients, **values)
    _count_use(connection, token_hash)
    return row


def _checked_number(connection: Connection, k: int, most: int | None) -> int:
    if k >= limits.MOST_CLIENTS:
        raise EnrolRefused("fleet-full", f"this run has its {limits.MOST_CLIENTS} clients; no number is free")
    if most is not None and k >= most:
        raise EnrolRefused(
            "number-too-large", f"the plan has {most} clients, numbered from 0; got number {k}: ask for less"
        )
    if one_row(connection, clients, clients.c.k == k) is not None:
        raise EnrolRefused("number-taken", f"client number {k} is taken; ask for another, or for none")
    return k


def _count_use(connection: Connection, token_hash: bytes) -> None:
    token = one_row(connection, tokens, tokens.c.hash == token_hash)
    assert token is not None
    left = None if token.uses is None else token.uses - 1
    update_rows(connection, tokens, tokens.c.hash == token_hash, uses=left, used=token.used + 1)


def _usable_token(connection: Connection, token_hash: bytes, now: float) -> TokenRow:
    row = one_row(connection, tokens, tokens.c.hash == token_hash)
    if row is None:
        raise EnrolRefused("token-unknown", "this join token is not known; ask the server's operator for a new one")
    if row.uses == 0:
        raise EnrolRefused("token-used", "this join token is used up; ask the server's operator for a new one")
    if row.expires is not None and now >= row.expires:
        raise EnrolRefused("token-expired", "this join token has expired; ask the server's operator for a new one")
    return token_row(row)


def _agreed_number(bound: int | None, wanted: int | None) -> int | None:
    if None not in (bound, wanted) and bound != wanted:
        raise EnrolRefused("number-taken", f"this join token is for client {bound}, not {wanted}; ask for none")
    return wanted if bound is None else bound


def _listed(tasks: tuple[str, ...] | None) -> str | None:
    return None if tasks is None else json.dumps(list(tasks))


def _welcome_back(connection: Connection, there: ClientRow, who: Applicant, wanted: int | None) -> ClientRow:
    """The answer to a client that did not receive the first answer, or now has other examples or tasks."""
    if there.revoked:
        raise EnrolRefused("revoked", f"client {there.k} was shut out by the server's operator")
    if wanted not in (None, there.k):
        raise EnrolRefused("number-taken", f"this key is client {there.k} already, it cannot be {wanted} as well")
    now = replace(there, examples=who.examples, tasks=who.tasks)
    if now != there:
        values = {"examples": who.examples, "tasks": _listed(who.tasks), "changed": next_change(connection)}
        update_rows(connection, clients, clients.c.k == there.k, **values)
    return now


def _free_number(connection: Connection) -> int:
    """The smallest number that no client has and no unused token is bound to."""
    held, largest = connection.execute(select(func.count(), func.max(clients.c.k)).select_from(clients)).one()
    start = held if held == (largest or 0) + 1 else 0  # usually there are no gaps, and nothing to search
    reserved = tokens.alias()
    after = union_all(
        select(literal(start).label("k")),
        select(clients.c.k + 1).where(clients.c.k >= start),
        select(tokens.c.client + 1).where(tokens.c.client >= start),
    ).subquery()
    taken = exists().where(clients.c.k == after.c.k)
    bound = exists().where(and_(reserved.c.client == after.c.k, or_(reserved.c.uses.is_(None), reserved.c.uses > 0)))
    return int(connection.scalar(select(func.min(after.c.k)).where(~taken, ~bound)) or 0)


def next_change(connection: Connection) -> int:
    """The number of the next change to a client: writers take turns, so numbers grow in commit order."""
    return int(connection.scalar(select(func.max(clients.c.changed))) or 0) + 1


def token_row(row: Any) -> TokenRow:
    return TokenRow(bytes(row.hash), row.uses, row.label, row.client, row.expires, row.used)


def client_row(row: Any) -> ClientRow:
    return ClientRow(
        row.k, bytes(row.key), row.examples, row.name, bool(row.revoked),
        bytes(row.token), row.enrolled, row.address, bool(row.approved),
        None if row.tasks is None else tuple(json.loads(row.tasks)),
    )  # fmt: skip
