"""Which database a path or a URL means."""

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from fedavg.fleets.http.server.store.database import Database
from fedavg.fleets.http.server.store.postgresql import PostgreSQL
from fedavg.fleets.http.server.store.rows import StoreError
from fedavg.fleets.http.server.store.sqlite import SQLite


def is_postgresql(url: str | None) -> bool:
    return url is not None and url.startswith(("postgresql:", "postgresql+"))


def file_of(url_or_path: str) -> Path:
    """The file of an SQLite database."""
    return Path(database_at(url_or_path).name)


def database_at(url_or_path: str | Path, part: str | None = None) -> Database:
    """`part` is a schema of a PostgreSQL database; files have none."""
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return SQLite(Path(url_or_path))
    try:
        url = make_url(url_or_path)
    except ArgumentError as error:
        raise StoreError("the database's URL cannot be read; expected a path, sqlite:/// or postgresql://") from error
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        return SQLite(Path(str(url.database)))
    if url.get_backend_name() == "postgresql":
        return PostgreSQL(url, part)
    raise StoreError(
        f"{url.render_as_string(hide_password=True)} is not a database for a run; expected a path, sqlite:///path or "
        "postgresql://user@host/name"
    )
