"""The database of an earlier release is brought up to date, and the service in it goes on (`schemas/make.py`)."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from operated import operating, train
from sqlalchemy import create_engine, make_url, text

from fedavg.fleets.http.protocol.keys import ClientKey, Signer
from fedavg.fleets.http.server.store import Store, StoreError
from fedavg.fleets.http.server.store.copies import schema_of
from fedavg.fleets.http.server.store.schema import LATEST, MIGRATIONS, found_schema
from fedavg.programs.backup import back_up
from fleet_peers import NUMBERS, Peer, until

RELEASES = sorted(path for path in (Path(__file__).parent / "schemas").iterdir() if path.name[0].isdigit())


def as_files(release, directory):
    """The folder of the service, as that release left it."""
    for name in ("service", "run_1", "run_2"):
        place = directory if name == "service" else directory / "runs" / name[-1]
        place.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(place / "fleet.db")
        database.executescript((release / f"{name}.sql").read_text())
        database.close()
        for record in release.glob(f"{name}.*.jsonl"):
            (place / record.name.removeprefix(f"{name}.")).write_bytes(record.read_bytes())


def as_schemas(release, directory, url):
    """The same in PostgreSQL: the statements of that release's schema, and its rows."""
    as_files(release, directory)
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    for schema, place in (("public", directory), *((f"run_{n}", directory / "runs" / str(n)) for n in (1, 2))):
        source = sqlite3.connect(place / "fleet.db")
        source.row_factory = sqlite3.Row
        old = int(source.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()[0])
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
            connection.execute(text(f"SET LOCAL search_path = {schema}"))
            connection.execute(text("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"))
            for statement in (each for step in MIGRATIONS[:old] for each in step):
                connection.exec_driver_sql(statement.format(blob="BYTEA"))
            tables = [row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for row in source.execute(f"SELECT * FROM {table}").fetchall():
                    columns = ", ".join(f'"{name}"' for name in row.keys())  # noqa: SIM118
                    values = ", ".join("%s" for _ in row)
                    connection.exec_driver_sql(f"INSERT INTO {table} ({columns}) VALUES ({values})", tuple(row))
        source.close()
        (place / "fleet.db").unlink()
    engine.dispose()


def client_of(release, port):
    peer = Peer(port)
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex((release / "client.key").read_text()))
    peer.key = ClientKey(key)
    peer.signer = Signer(peer.key, 0, "none-yet")
    return peer


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_service_of_an_earlier_release_goes_on(tmp_path, release, kind, url):
    if kind == "sqlite":
        as_files(release, tmp_path)
    else:
        as_schemas(release, tmp_path, url)
    database = None if kind == "sqlite" else url
    with operating(tmp_path, database=database, new_admin_token=True) as service:
        assert [run["state"] for run in service.runs()] == ["done", "running", "queued"]
        peer = client_of(release, service.port)
        offer = peer.offer()
        assert (offer["round"], offer["attempt"]) == (2, 0)  # of the private run, which was stopped there
        for _ in range(2):
            assert peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 1.0, metrics={})).json["accepted"]
            offer = peer.offer()
        until(lambda: service.state(2) == "done")
        spent = service.admin("GET", "/admin/runs/2/ledger").json["ledger"]
        assert [(row["round"], row["releases"]) for row in spent] == [(1, 1), (2, 2), (3, 3)]
        train(peer, 1)  # the run that waited
        until(lambda: service.state(3) == "done")
        service.change(1, "extend", {"rounds": 3, "lr": None, "from_round": None})
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        peer.close()
        changes = service.admin("GET", "/admin/runs/1/ledger").json["changes"]
        assert [change["entry"].get("rounds") for change in changes] == [2, 3]
        assert [client["revoked"] for client in service.admin("GET", "/admin/clients").json["clients"]] == [False, True]
    for part in (None, "run_1", "run_2"):
        place = database or (tmp_path / "fleet.db" if part is None else tmp_path / "runs" / part[-1] / "fleet.db")
        with Store.open(place, part if database else None) as store, store.connections.read("look") as connection:
            assert found_schema(connection) == LATEST


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_runs_that_nobody_takes_up_are_brought_up_to_date_as_well(tmp_path, release, kind, url):
    """Else the upgraded service could not be copied."""
    database = None if kind == "sqlite" else url
    as_files(release, tmp_path / "service") if database is None else as_schemas(release, tmp_path / "service", url)
    with operating(tmp_path / "service", database=database, new_admin_token=True):
        made = back_up(tmp_path / "copy", tmp_path / "service", database)
    assert made.schema == LATEST
    for run in made.runs:
        assert schema_of(tmp_path / "copy" / "runs" / str(run) / "fleet.db") == LATEST


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_an_earlier_release_is_copied_before_it_is_brought_up_to_date(tmp_path, release):
    """The way back from an upgrade: a copy that the earlier release can open."""
    as_files(release, tmp_path / "old")
    made = back_up(tmp_path / "copy", tmp_path / "old")
    assert made.schema < LATEST
    with Store.open(tmp_path / "old" / "fleet.db") as store:
        assert len(store.clients()) == 2
    assert schema_of(tmp_path / "copy" / "fleet.db") == made.schema


def test_a_database_of_a_later_release_is_refused(tmp_path):
    Store.open(tmp_path / "fleet.db").close()
    database = sqlite3.connect(tmp_path / "fleet.db")
    database.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(LATEST + 1),))
    database.commit()
    database.close()
    with pytest.raises(StoreError, match=f"has schema {LATEST + 1}.*update fedavg, or restore"):
        Store.open(tmp_path / "fleet.db")
