"""Rows under digests: what is written gets one, and no row is believed without it.

A digest finds damage of the disk or of the file. Whoever can write to the database can write digests too.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, and_, insert, select, type_coerce, update
from sqlalchemy.types import NULLTYPE

from fedavg.fleets.http.server.store.schema import DIGEST, LATER, metadata

_CHUNK: Final = 1000


class DamagedRow(Exception):
    """Something in the database is not what was written; `Store` says where that is."""


def seal(table: Table, values: dict[str, Any]) -> str:
    """The digest of a row, over its table's name and each column's name, type and value.

    A column that was added later counts only if something is in it, so that it changes no digest by being there.
    """
    digest = blake2b(table.name.encode(), digest_size=16)
    for column in table.c:
        absent = column.info.get(LATER, False) and values[column.name] is None
        if column.name != DIGEST and not absent:
            digest.update(f"\0{column.name}\0".encode() + _encoded(values[column.name]))
    return digest.hexdigest()


def _encoded(value: object) -> bytes:
    value = int(value) if isinstance(value, bool) else value  # as the databases give it back
    data = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode(errors="replace")
    kind = "bytes" if isinstance(value, bytearray | memoryview) else type(value).__name__
    return f"{kind} {len(data)} ".encode() + data


def insert_row(connection: Connection, table: Table, **values: Any) -> None:
    """Columns that are not given are null; those that cannot be must be given."""
    row = {column.name: values.get(column.name) for column in table.c if column.name != DIGEST}
    connection.execute(insert(table).values(**row, digest=seal(table, row)))


def update_rows(connection: Connection, table: Table, condition: Any, **values: Any) -> int:
    """How many rows were changed. One at a time: each has a digest of its own."""
    found = rows(connection, table, condition)
    for row in found:
        _rewrite(connection, table, dict(row._mapping) | values, dict(row._mapping))
    return len(found)


def _rewrite(connection: Connection, table: Table, new: dict[str, Any], old: dict[str, Any]) -> None:
    this = and_(*(column == old[column.name] for column in table.primary_key))
    connection.execute(update(table).where(this).values(**new | {DIGEST: seal(table, new)}))


def rows(
    connection: Connection, table: Table, *conditions: Any, order: Any = (), limit: int | None = None
) -> list[Any]:
    """The rows, each checked; values are as the driver gives them, since those of a damaged row may be of any type."""
    order = order if isinstance(order, tuple) else (order,)
    found = connection.execute(_raw(table).where(*conditions).order_by(*order).limit(limit)).all()
    for row in found:
        _check(connection, table, row)
    return list(found)


def one_row(connection: Connection, table: Table, *conditions: Any) -> Any | None:
    found = rows(connection, table, *conditions, limit=1)
    return found[0] if found else None


def _check(connection: Connection, table: Table, row: Row[Any]) -> None:
    if row._mapping[DIGEST] != seal(table, dict(row._mapping)):
        name = ", ".join(f"{column.name} {_shown(row._mapping[column.name])}" for column in table.primary_key)
        raise DamagedRow(f"the row of '{table.name}' with {name} is damaged: it does not match its digest")


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)[:40]


def check_all(connection: Connection) -> None:
    """Every row of every table."""
    for table in metadata.sorted_tables:
        for _ in all_rows(connection, table):
            pass


def all_rows(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    """Every row of a table, each checked, without all of them in memory at once."""
    for row in _all(connection, table):
        _check(connection, table, row)
        yield row


def seal_all(connection: Connection) -> None:
    """Digests for rows that were written by statements of a migration, and have none; others are checked."""
    for table in metadata.sorted_tables:
        for row in list(_all(connection, table)):
            if row._mapping[DIGEST]:
                _check(connection, table, row)
                continue
            _rewrite(connection, table, dict(row._mapping), dict(row._mapping))


def _all(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    yield from connection.execute(_raw(table)).yield_per(_CHUNK)


def _raw(table: Table) -> Select[Any]:
    columns: list[Any] = [type_coerce(column, NULLTYPE).label(column.name) for column in table.c]
    return select(*columns).select_from(table)
