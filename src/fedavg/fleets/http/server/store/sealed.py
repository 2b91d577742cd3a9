"""Rows with digests: every written row gets one, and no row is trusted without it.

A digest reveals damage to the disk or the file. It does not stop an attacker: anyone who can write to the database can
write digests too.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, and_, insert, select, type_coerce, update
from sqlalchemy.types import NULLTYPE

from fedavg.fleets.http.server.store.schema import DIGEST, LATER, metadata

_CHUNK: Final = 1000


class DamagedRow(Exception):
    """Something in the database is not what was written; `Store` says which database it is."""


def seal(table: Table, values: dict[str, Any]) -> str:
    """The digest of a row, over its table's name and each column's name, type and value.

    A column that was added later counts only if it is not null, so that adding it changes no digest.
    """
    digest = blake2b(table.name.encode(), digest_size=16)
    for column in table.c:
        absent = column.info.get(LATER, False) and values[column.name] is None
        if column.name != DIGEST and not absent:
            digest.update(f"\0{column.name}\0".encode() + _encoded(values[column.name]))
    return digest.hexdigest()


def _encoded(value: object) -> bytes:
    value = int(value) if isinstance(value, bool) else value  # as the databases return it
    data = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode(errors="replace")
    kind = "bytes" if isinstance(value, bytearray | memoryview) else type(value).__name__
    return f"{kind} {len(data)} ".encode() + data


def insert_row(connection: Connection, table: Table, **values: Any) -> None:
    """Columns that are not given are null; non-nullable columns must be given."""
    row = {column.name: values.get(column.name) for column in table.c if column.name != DIGEST}
    connection.execute(insert(table).values(**row, digest=seal(table, row)))


def update_rows(connection: Connection, table: Table, condition: Any, **values: Any) -> int:
    """Returns how many rows were changed. They are changed one at a time: each has its own digest."""
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
    """The rows, each checked. Values are as the driver returns them: those of a damaged row may have any type."""
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
    """Check every row of every table."""
    for table in metadata.sorted_tables:
        for _ in all_rows(connection, table):
            pass


def all_rows(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    """Every row of a table, each checked, without loading all of them at once."""
    for row in _all(connection, table):
        _check(connection, table, row)
        yield row


def seal_all(connection: Connection) -> None:
    """Add digests to rows that a migration wrote without them; check all others."""
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
