"""The store on real databases: SQLite files, and a PostgreSQL server that is started for these tests."""

import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from hashlib import sha256
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import pytest
from postgres import OTHERS, emptied
from sqlalchemy import create_engine, inspect, make_url, text

from fedavg.errors import FedAvgError
from fedavg.fleets.http.server.store import (
    ClientRow,
    Counted,
    EnrolRefused,
    RoundRow,
    RunRow,
    Store,
    StoreError,
    TokenRow,
    schema,
    sqlite,
)
from fedavg.fleets.http.server.store.schema import LATEST

FORK = get_context("fork")
TOKEN, OTHER_TOKEN = b"t" * 32, b"o" * 32
ALICE, BOB, CAROL = b"a" * 32, b"b" * 32, b"c" * 32


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """An empty database of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "run.db")
    return emptied(request.getfixturevalue("postgres"))


@pytest.fixture
def postgres_url(postgres):
    return emptied(postgres)


@pytest.fixture
def store(url):
    with Store.open(url) as store:
        yield store


def sql(url: str, *statements: str) -> None:
    """What another program might do to the database."""
    parsed = make_url(url) if "://" in url else make_url(f"sqlite:///{url}")
    driver = "postgresql+psycopg" if parsed.get_backend_name() == "postgresql" else "sqlite"
    engine = create_engine(parsed.set(drivername=driver))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def commit(store: Store, round: int, blob: bytes = b"state", attempt: int = 0) -> None:
    store.begin_round(round, attempt, [0, 1, 2], f"model {round - 1}")
    store.commit_round(round, attempt, blob, f"model {round}", {"round": round, "loss": 0.1}, [0, 2], {"spent": round})


def refused(reason: str, store: Store, *enrolment) -> None:
    with pytest.raises(EnrolRefused) as caught:
        store.enrol(*enrolment)
    assert caught.value.reason == reason


# ---------------------------------------------------------------------- the run and its notes


def test_the_run_is_written_once(store, url):
    row = RunRow("rounds = 3", "abc", "graph")
    assert store.save_run("rounds = 3", "abc", "graph") == row
    assert store.save_run("# the same plan\nrounds = 3", "abc", "plain") == row
    with pytest.raises(StoreError, match="this database belongs to another plan") as caught:
        store.save_run("rounds = 4", "def", "graph")
    assert not caught.value.retryable
    with Store.open(url) as again:
        assert again.save_run("", "abc", "") == row


def test_notes(store, url):
    assert store.note("admin") is None
    store.set_note("admin", "1")
    store.set_note("admin", "2 ∞")
    with Store.open(url) as again:
        assert again.note("admin") == "2 ∞"


def test_a_value_that_no_column_holds(store):
    with pytest.raises(StoreError) as caught:
        store.set_note("note", "half a character: \ud800")
    assert not caught.value.retryable
    store.add_token(TOKEN, None, "", None)
    with pytest.raises(StoreError):
        store.enrol(TOKEN, ALICE, 2**70, "", None)
    with pytest.raises(StoreError):
        store.enrol(TOKEN, ALICE, -1, "", None)
    assert store.clients() == []


# ---------------------------------------------------------------------- enrolment


def test_numbers_are_given_in_order(store):
    store.add_token(TOKEN, 3, "lab", None)
    assert store.enrol(TOKEN, ALICE, 600, "alice", None) == ClientRow(0, ALICE, 600, "alice", False, TOKEN)
    assert store.enrol(TOKEN, BOB, 10, "bob", None).k == 1
    assert store.tokens() == [TokenRow(TOKEN, 1, "lab", None, None, used=2)]
    assert store.enrol(TOKEN, CAROL, 10, "carol", None).k == 2
    refused("token-used", store, TOKEN, b"d" * 32, 10, "dave", None)
    assert [client.name for client in store.clients()] == ["alice", "bob", "carol"]
    assert store.client(1) == ClientRow(1, BOB, 10, "bob", False, TOKEN)
    assert store.client(3) is None


def test_a_token_expires_but_not_for_who_came_by_it(store):
    store.add_token(TOKEN, None, "", None, expires=1000)
    assert store.enrol(TOKEN, ALICE, 1, "", None, now=999.9, address="10.0.0.7").k == 0
    with pytest.raises(EnrolRefused) as caught:
        store.enrol(TOKEN, BOB, 1, "", None, now=1000.0)
    assert caught.value.reason == "token-expired"
    assert store.enrol(TOKEN, ALICE, 1, "", None, now=2000.0) == store.client(0)  # the first answer may be lost
    assert store.client(0) == ClientRow(0, ALICE, 1, "", False, TOKEN, 999, "10.0.0.7")


def test_clients_wait_for_approval_and_are_changed_all_or_none(store):
    store.add_token(TOKEN, None, "", None)
    for key in (ALICE, BOB, CAROL):
        assert not store.enrol(TOKEN, key, 1, "", None, approved=False).approved
    store.approve([0, 2])
    with pytest.raises(StoreError, match="there is no client 9"):
        store.revoke([1, 9])
    assert [(row.approved, row.revoked) for row in store.clients()] == [(True, False), (False, False), (True, False)]


def test_a_client_that_lost_the_answer_asks_again(store):
    store.add_token(TOKEN, 1, "", None)
    first = store.enrol(TOKEN, ALICE, 600, "alice", None)
    assert store.tokens()[0].uses == 0
    assert store.enrol(TOKEN, ALICE, 601, "alice", None) == ClientRow(first.k, ALICE, 601, "alice", False, TOKEN)
    assert store.client(0).examples == 601
    refused("token-used", store, TOKEN, BOB, 1, "bob", None)
    refused("token-unknown", store, OTHER_TOKEN, ALICE, 1, "alice", None)
    refused("number-taken", store, TOKEN, ALICE, 1, "alice", 7)
    store.add_token(OTHER_TOKEN, 1, "", None)
    assert store.enrol(OTHER_TOKEN, ALICE, 602, "alice", None).k == 0
    assert store.tokens()[0].uses + store.tokens()[1].uses == 1, "an enrolled key uses no token up"


def test_a_number_can_be_asked_for(store):
    store.add_token(TOKEN, None, "", None)
    assert store.enrol(TOKEN, ALICE, 1, "", 1).k == 1
    refused("number-taken", store, TOKEN, BOB, 1, "", 1)
    assert store.enrol(TOKEN, BOB, 1, "", None).k == 0
    assert store.enrol(TOKEN, CAROL, 1, "", None).k == 2
    assert store.tokens()[0].uses is None


def test_a_token_can_be_bound_to_a_number(store):
    store.add_token(OTHER_TOKEN, 1, "for the device of row 0", 0)
    store.add_token(TOKEN, None, "", None)
    assert store.enrol(TOKEN, ALICE, 1, "", None).k == 1, "0 is kept for the token that is bound to it"
    refused("number-taken", store, OTHER_TOKEN, BOB, 1, "", 5)
    assert store.enrol(OTHER_TOKEN, BOB, 1, "", None).k == 0
    assert store.enrol(TOKEN, CAROL, 1, "", None).k == 2


def test_numbers_end_at_k(store):
    store.add_token(TOKEN, None, "", None)
    with pytest.raises(EnrolRefused, match="the plan has 2 clients, numbered from 0; got number 2"):
        store.enrol(TOKEN, ALICE, 1, "", 2, most=2)
    assert [store.enrol(TOKEN, key, 1, "", None, most=2).k for key in (ALICE, BOB)] == [0, 1]
    with pytest.raises(EnrolRefused, match="got number 2"):
        store.enrol(TOKEN, CAROL, 1, "", None, most=2)
    assert store.enrol(TOKEN, ALICE, 5, "", None, most=2).k == 0, "who is in is welcome back"


def test_a_refused_enrolment_uses_nothing_up(store):
    store.add_token(TOKEN, 2, "", None)
    store.enrol(TOKEN, ALICE, 1, "", 0)
    refused("number-taken", store, TOKEN, BOB, 1, "", 0)
    assert store.tokens()[0].uses == 1


def test_tokens_can_be_removed(store):
    store.add_token(TOKEN, None, "", None)
    store.enrol(TOKEN, ALICE, 1, "", None)
    assert store.remove_token(TOKEN)
    assert not store.remove_token(TOKEN)
    refused("token-unknown", store, TOKEN, BOB, 1, "", None)
    assert store.enrol(TOKEN, ALICE, 1, "", None).k == 0, "who is in stays in"


def test_a_revoked_client_stays_out(store):
    store.add_token(TOKEN, None, "", None)
    store.enrol(TOKEN, ALICE, 1, "", None)
    store.revoke([0])
    assert store.client(0).revoked
    refused("revoked", store, TOKEN, ALICE, 1, "", None)
    assert store.enrol(TOKEN, BOB, 1, "", None).k == 1
    with pytest.raises(StoreError, match="there is no client 9"):
        store.revoke([9])


def test_threads_enrol_side_by_side(store):
    store.add_token(TOKEN, 40, "", None)
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda i: store.enrol(TOKEN, bytes([i]) * 32, i, "", None), range(40)))
    assert sorted(row.k for row in rows) == list(range(40))
    assert store.tokens()[0].uses == 0


def enrol_with_each_token(pipe: Connection, url: str, name: bytes) -> None:
    with Store.open(url) as store:
        pipe.send("ready")
        pipe.recv()
        for i in range(20):
            try:
                store.enrol(bytes([i]) * 32, name + bytes([i]) * 31, 1, "", None)
                pipe.send("in")
            except EnrolRefused as refused:
                pipe.send(refused.reason)


def test_two_processes_want_the_same_one_time_tokens(store, url):
    """20 times over; exactly one of the two gets in each time."""
    for i in range(20):
        store.add_token(bytes([i]) * 32, 1, "", None)
    rivals = [process(enrol_with_each_token, url, name)[1] for name in (b"a", b"b")]
    assert [rival.recv() for rival in rivals] == ["ready", "ready"]
    for rival in rivals:
        rival.send("go")
    answers = [[rival.recv() for _ in range(20)] for rival in rivals]
    assert [sorted(pair) for pair in zip(*answers, strict=True)] == [["in", "token-used"]] * 20
    assert [client.k for client in store.clients()] == list(range(20))
    assert all(token.uses == 0 for token in store.tokens())


def process(target: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    """A process of its own, forked so that it need not import PyTorch again, and a pipe to it."""
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=target, args=(theirs, *arguments), daemon=True)
    child.start()
    theirs.close()
    return child, ours


# ---------------------------------------------------------------------- rounds


def test_rounds_are_committed_in_order(store, url):
    assert store.last_state() is None
    assert store.last_round() == 0
    store.initial_state(b"zero", "model 0")
    store.initial_state(b"zero", "model 0")
    with pytest.raises(StoreError, match="the run began from model model 0"):
        store.initial_state(b"other", "model x")
    assert store.last_state() == (0, b"zero")
    for round in range(1, 6):
        commit(store, round, b"state %d" % round)
    with Store.open(url) as again:
        assert again.last_state() == (5, b"state 5")
        assert again.last_round() == 5
        assert again.committed() == [{"round": round, "loss": 0.1} for round in range(1, 6)]
        assert again.ledger() == [{"spent": round} for round in range(1, 6)]
        assert again.counted(3) == Counted(0, frozenset({0, 2}))
        assert again.open_round() is None
    with pytest.raises(StoreError, match="only for a new one"):
        store.initial_state(b"zero", "model 0")


def test_a_round_is_begun_and_tried_again(store, url):
    store.begin_round(1, 0, [4, 2], "m")
    store.begin_round(1, 0, [4, 2], "m")
    with Store.open(url) as again:
        assert again.open_round() == RoundRow(1, 0, "collecting", (4, 2), "m")
    with pytest.raises(StoreError, match="with other values"):
        store.begin_round(1, 0, [4, 3], "m")
    with pytest.raises(StoreError, match="commit or abandon that first"):
        store.begin_round(1, 1, [4, 2], "m")
    store.abandon_round(1, 0, "too few clients")
    assert store.open_round() is None
    with pytest.raises(StoreError, match="the next one is 1"):
        store.begin_round(1, 0, [4, 2], "m")
    store.abandon_round(1, 0, "again")  # a lost connection may have hidden that it was done
    store.begin_round(1, 1, [5], "m")
    store.commit_round(1, 1, b"", "n", {}, [])
    assert store.ledger() == []
    assert not store.counted(1).clients


def test_commits_out_of_order_are_refused(store):
    commit(store, 1)
    with pytest.raises(StoreError, match="1 rounds are committed, the next one is 2"):
        store.commit_round(1, 0, b"other", "m", {}, [0])
    with pytest.raises(StoreError, match="the next one is 2"):
        store.begin_round(1, 1, [0], "m")
    with pytest.raises(StoreError, match="the next one is 2"):
        store.begin_round(3, 0, [0], "m")
    with pytest.raises(StoreError, match="it is not open"):
        store.commit_round(2, 0, b"other", "m", {}, [0])
    store.begin_round(2, 0, [0], "m")
    with pytest.raises(StoreError, match="it is not open"):
        store.commit_round(2, 1, b"other", "m", {}, [0])
    with pytest.raises(StoreError, match="expected each of them once"):
        store.commit_round(2, 0, b"other", "m", {}, [0, 0])
    with pytest.raises(StoreError, match="round 2 is not committed"):
        store.counted(2)
    assert store.last_state() == (1, b"state")


def test_old_states_are_dropped(store, url):
    store.initial_state(b"0", "m")
    for round in range(1, 6):
        commit(store, round)
    sql(url, "DELETE FROM states WHERE round IN (3, 4, 5)")
    assert store.last_state() is None, "rounds 3, 4 and 5 were all there was"


def test_a_damaged_state_is_noticed(store, url):
    commit(store, 1, b"\x00" * 1000)
    value = "X'00ff'" if "://" not in url else "'\\x00ff'::bytea"
    sql(url, f"UPDATE states SET blob = {value}")
    with pytest.raises(StoreError, match="the row of 'states' with round 1 is damaged: it does not match its digest"):
        store.last_state()


def commit_for_ever(pipe: Connection, url: str) -> None:
    with Store.open(url) as store:
        store.acquire("the server that is killed")
        for round in count(store.last_round() + 1):
            if store.open_round() is None:
                store.begin_round(round, 0, [round, 0], f"model {round - 1}")
            blob = round.to_bytes(4, "little") * 500_000
            store.commit_round(round, 0, blob, f"model {round}", {"round": round}, [round], {"spent": round})
            pipe.send(round)


def test_killed_in_the_middle_of_commits(url):
    """After kill -9 the store holds exactly the committed rounds, whole, and its owner's lock is free."""
    for kill in range(8):
        server, pipe = process(commit_for_ever, url)
        told = [pipe.recv() for _ in range(2)][-1]
        if pipe.poll(0.005 * kill):  # somewhere in the next commit
            told = pipe.recv()
        server.kill()
        server.join()
        with Store.open(url) as store:
            within(10, lambda store=store: store.acquire("the next one"))
            last, blob = store.last_state()
            assert told <= last <= told + 2
            assert blob == last.to_bytes(4, "little") * 500_000
            assert store.committed() == [{"round": round} for round in range(1, last + 1)]
            assert store.ledger() == [{"spent": round} for round in range(1, last + 1)]
            assert [store.counted(round).clients for round in range(1, last + 1)] == [{r} for r in range(1, last + 1)]
            there = store.open_round()
            assert there is None or (there.round, there.cohort) == (last + 1, (last + 1, 0))


def within(seconds: float, call: Callable[[], None]) -> None:
    """PostgreSQL needs a moment to notice that a client was killed, or to end a session."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


# ---------------------------------------------------------------------- owners, schemas, failures


def test_a_second_owner_is_refused(store, url):
    store.acquire("host-1 process 7")
    store.acquire("host-1 process 7")
    with Store.open(url) as second:
        with pytest.raises(StoreError, match="in use by host-1 process 7; only one server may own a run") as caught:
            second.acquire("host-2 process 8")
        assert not caught.value.retryable
        second.add_token(TOKEN, 1, "an operator's tool may still write", None)
        store.close()
        second.acquire("host-2 process 8")


def test_a_database_that_is_opened_by_many_at_once(url):
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: Store.open(url), range(8)))
    for i, store in enumerate(stores):
        store.set_note(str(i), "here")
    assert all(stores[0].note(str(i)) == "here" for i in range(8))
    for store in stores:
        store.close()


def test_schema_0_is_brought_up_to_date(url):
    """A database with our table of versions and nothing else yet."""
    sql(url, "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)", "INSERT INTO meta VALUES ('schema', '0')")
    with Store.open(url) as store:
        commit(store, 1)


def test_a_later_step_keeps_what_is_there(url, monkeypatch):
    with Store.open(url) as store:
        commit(store, 1)
    step = (
        "ALTER TABLE notes ADD COLUMN author TEXT",
        "INSERT INTO notes (key, value, author) VALUES ('greeting', 'hello', 'step')",
    )
    broken = (*step, "INSERT INTO no_such_table VALUES (1)")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, broken])
    with pytest.raises(StoreError, match="no_such_table"):
        Store.open(url)
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS[:-1], step])
    for _ in range(2):  # the step is taken once
        with Store.open(url) as store:
            assert store.note("greeting") == "hello"
            assert store.last_state() == (1, b"state")


def test_a_database_of_each_earlier_schema_keeps_what_is_there(url):
    """Its rows get digests, and its tables the columns of a new database."""
    blob = "X'7374617465'" if "://" not in url else "'\\x7374617465'::bytea"
    for old in range(1, len(schema.MIGRATIONS)):
        statements = [statement for step in schema.MIGRATIONS[:old] for statement in step]
        sql(
            url,
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
            f"INSERT INTO meta VALUES ('schema', '{old}')",
            *(statement.format(blob="BLOB" if "://" not in url else "BYTEA") for statement in statements),
            "INSERT INTO run (id, plan_toml, plan_digest, engine) VALUES (1, 'rounds = 1', 'abc', 'graph')",
            f"INSERT INTO tokens (hash, uses, label, client) VALUES ({blob}, 2, 'old', 7)",
            f"INSERT INTO clients (k, key, token, examples, name) VALUES (3, {blob}, {blob}, 9, 'alice')",
            "INSERT INTO rounds (round, attempt, state, cohort, model_sha256, metrics, counted)"
            " VALUES (1, 0, 'done', '[3]', 'm', '{\"round\"\\: 1}', '[3]')",
            f"INSERT INTO states (round, model_sha256, blob_sha256, blob) VALUES (1, 'm', 'unused', {blob})",
            "INSERT INTO ledger (round, entry) VALUES (1, '{\"spent\"\\: 1}')",
        )
        for _ in range(2):
            with Store.open(url) as store:
                assert store.save_run("rounds = 2", "abc", "plain") == RunRow("rounds = 1", "abc", "graph")
                assert store.tokens() == [TokenRow(b"state", 2, "old", 7)]
                assert store.clients() == [ClientRow(3, b"state", 9, "alice", False, b"state")]
                assert store.committed() == [{"round": 1}]
                assert store.ledger() == [{"spent": 1}]
                assert store.last_state() == (1, b"state")
                migrated = columns(store)
        commit_again(url)
        sql(url, *(f"DROP TABLE {table}" for table in migrated))
    with Store.open(url) as store:
        assert columns(store) == migrated


def columns(store):
    with store.connections.read("look") as connection:
        names = {table: inspect(connection).get_columns(table) for table in schema.metadata.tables}
    return {  # SQLite says of old tables that their keys may be null
        table: sorted((each["name"], each["nullable"] and not each.get("primary_key")) for each in found)
        for table, found in names.items()
    }


def commit_again(url):
    with Store.open(url) as store:
        commit(store, 2)
    with Store.open(url) as store:
        assert store.last_round() == 2


# ---------------------------------------------------------------------- flipped bits


def everything(store: Store) -> tuple:
    rounds = [(store.counted(round), store.next_attempt(round)) for round in range(1, store.last_round() + 1)]
    return (
        store.save_run("", "abc", ""), store.note("admin"), store.tokens(), store.clients(), store.open_round(), rounds,
        store.committed(), store.ledger(), store.last_state(),
    )  # fmt: skip


def fleet_database(path: Path) -> tuple:
    """A run in its sixth round, and all that is in it."""
    with Store.open(path) as store:
        store.save_run("rounds = 9  # " + "x" * 300, "abc", "devices")
        store.set_note("admin", "f" * 64)
        store.add_token(TOKEN, None, "for all", None)
        for k in range(25):
            store.enrol(TOKEN, bytes([k]) * 32, 100 + k, f"client {k}", None, now=1e9, address="10.0.0.1")
        store.revoke([3])
        for round in range(1, 6):
            commit(store, round, bytes(range(256)) * 40)
        store.begin_round(6, 0, [1, 2], "model 5")
        store.abandon_round(6, 0, "nobody came")
        store.begin_round(6, 1, [4, 5], "model 5")
        return everything(store)


def read_back(path: Path) -> tuple | str:
    """All that is in a database, or why it is refused."""
    try:
        with Store.open(path) as store:
            return everything(store)
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize("flips", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_a_database_is_believed(tmp_path, flips):
    """Refused, or of no effect: half of a young file is room that nothing uses yet."""
    path = tmp_path / "run.db"
    whole = fleet_database(path)
    data = path.read_bytes()
    used = [at for at in range(len(data)) if data[at]]  # where nothing is yet, nothing can be damaged
    random = Random(1955)
    refused = 0
    for number in range(flips):
        at = random.choice(used) if number % 4 else random.randrange(len(data))
        flipped = bytearray(data)
        flipped[at] ^= 1 << random.randrange(8)
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(flipped)
        found = read_back(copy)
        assert found == whole or str(copy) in found, f"byte {at}"
        refused += found != whole
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()
    assert refused > flips // 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger SET entry = '{\"spent\"\\: 0}' WHERE round = 2",
        "UPDATE rounds SET counted = '[0]' WHERE round = 2",
        "UPDATE clients SET revoked = 0 WHERE k = 3",
        "UPDATE tokens SET uses = 5",
        "UPDATE notes SET value = 'other'",
        "UPDATE run SET plan_toml = 'rounds = 8'",
        "UPDATE states SET round = 9 WHERE round = 5",
        "DELETE FROM rounds WHERE round = 2",
        "DELETE FROM states WHERE round = 5",
    ],
)
def test_an_altered_row_is_named(tmp_path, change):
    path = tmp_path / "run.db"
    fleet_database(path)
    sql(str(path), change)
    table = change.split()[2 if change.startswith("DELETE") else 1]
    named = (
        "of its 5 rounds some are lost" if change.startswith("DELETE") else f"the row of '{table}' with .* is damaged"
    )
    with pytest.raises(StoreError, match=f"run.db: {named}.*; restore the database from a copy"):
        Store.open(path)


def test_a_newer_schema_is_refused(url):
    Store.open(url).close()
    sql(url, "UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(
        StoreError, match=f"has schema 99; this version of fedavg knows schemas up to {LATEST}; update"
    ) as caught:
        Store.open(url)
    assert not caught.value.retryable


def test_a_schema_that_somebody_changed(store, url):
    sql(url, "DROP TABLE notes")
    with pytest.raises(StoreError, match="notes") as caught:
        store.note("admin")
    assert not caught.value.retryable
    assert isinstance(caught.value, FedAvgError)
    commit(store, 1)


def fill(path: Path) -> None:
    """Leaves not one page on the disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_loses_nothing(small_disk):
    old, new = b"o" * 500_000, b"n" * 500_000
    with Store.open(small_disk / "run.db") as store:
        commit(store, 1, old)
        store.begin_round(2, 0, [0, 1, 2], "model 1")
        filler = small_disk / "filler"
        fill(filler)
        for _ in range(2):
            with pytest.raises(StoreError, match="free space on its disk") as caught:
                store.commit_round(2, 0, new, "model 2", {}, [1])
            assert caught.value.retryable
        assert store.last_state() == (1, old)
        assert store.open_round() is not None
        filler.unlink()
        store.commit_round(2, 0, new, "model 2", {}, [1])
    with Store.open(small_disk / "run.db") as again:
        assert again.last_state() == (2, new)


def test_a_writer_that_does_not_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "PATIENCE_S", 0.2)
    path = tmp_path / "run.db"
    with Store.open(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process is writing: try again") as caught:
            store.set_note("a", "b")
        assert caught.value.retryable
        assert store.note("a") is None, "readers do not wait"
        other.execute("ROLLBACK")
        store.set_note("a", "b")


@pytest.mark.parametrize("damage", ["another file", "header", "pages"])
def test_a_corrupt_file(tmp_path, damage):
    path = tmp_path / "run.db"
    if damage == "another file":
        path.write_bytes(b"this is no database " * 1000)
    else:
        with Store.open(path) as store:
            commit(store, 1, bytes(500_000))
        assert not (tmp_path / "run.db-wal").exists(), "the last to close tidies up"
        start = 16 if damage == "header" else sqlite.PAGE_BYTES
        with path.open("r+b") as file:
            file.seek(start)
            file.write(os.urandom(3 * sqlite.PAGE_BYTES))
    before = sha256(path.read_bytes()).digest()
    with pytest.raises(StoreError, match="restore it from a copy") as caught:
        Store.open(path)
    assert not caught.value.retryable
    assert sha256(path.read_bytes()).digest() == before


def test_sqlite_is_durable_and_private(tmp_path):
    with Store.open(tmp_path / "run.db") as store:
        store.set_note("a", "b")
        assert (tmp_path / "run.db-wal").exists()
        with store.connections.write("look") as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        store.acquire("me")
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("where", ["no/such/directory/run.db", ""])
def test_a_place_that_can_not_be_opened(tmp_path, where):
    with pytest.raises(StoreError, match="cannot open .*directory"):
        Store.open(tmp_path / where)


@pytest.mark.parametrize("url", ["mysql://u:secret@h/db", "sqlite://", "sqlite:///:memory:", "://"])
def test_urls_that_are_no_place_for_a_run(url):
    with pytest.raises(StoreError, match="expected a path, sqlite:///") as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


def test_forms_of_urls(tmp_path, postgres_url):
    with Store.open(f"sqlite:///{tmp_path}/run.db") as store:
        store.set_note("a", "b")
    with Store.open(str(tmp_path / "run.db")) as store:
        assert store.note("a") == "b"
    assert postgres_url.startswith("postgresql://")
    with Store.open(postgres_url.replace("postgresql://", "postgresql+psycopg://")) as store:
        store.set_note("a", "b")


def test_a_postgresql_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match="look whether the server is there") as caught:
        Store.open(f"postgresql://user:secret@/run?host={tmp_path}")
    assert caught.value.retryable
    assert "secret" not in str(caught.value)


def test_postgresql_is_stopped_and_started_again(postgres, postgres_url):
    with Store.open(postgres_url) as store:
        store.acquire("host-1 process 7")
        commit(store, 1)
        store.begin_round(2, 0, [0], "model 1")
        postgres.stop()
        try:
            for call in (lambda: store.commit_round(2, 0, b"new", "m", {}, [0]), store.committed, store.last_state):
                with pytest.raises(StoreError) as caught:
                    call()
                assert caught.value.retryable
        finally:
            postgres.start()
        assert store.last_state() == (1, b"state")
        store.commit_round(2, 0, b"new", "model 2", {}, [0])
        assert store.last_state() == (2, b"new")
        with Store.open(postgres_url) as second, pytest.raises(StoreError, match="in use by host-1 process 7"):
            second.acquire("host-2 process 8")


def test_lost_sessions_are_made_anew_unseen(postgres_url):
    with Store.open(postgres_url) as store:
        store.acquire("host-1 process 7")
        sql(postgres_url, f"SELECT pg_terminate_backend(pid) {OTHERS}")
        commit(store, 1)
        assert store.last_state() == (1, b"state")
        with Store.open(postgres_url) as second, pytest.raises(StoreError, match="in use by host-1 process 7"):
            second.acquire("host-2 process 8")


def test_who_lost_the_run_to_another_server_can_not_write(postgres_url):
    with Store.open(postgres_url) as first, Store.open(postgres_url) as second:
        first.acquire("host-1 process 7")
        sql(
            postgres_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%host-1 process 7'",
        )
        within(10, lambda: second.acquire("the next one"))
        with pytest.raises(StoreError, match="in use by the next one") as caught:
            commit(first, 1)
        assert not caught.value.retryable
        commit(second, 1)


def test_a_session_that_the_server_still_believes_in(postgres_url):
    """A cut cable: this side has given the connection up, the server has not, and so still holds our own lock."""
    with Store.open(postgres_url) as store:
        store.acquire("host-1 process 7")
        lost, store.connections._writer = store.connections._writer, None
        with pytest.raises(StoreError, match="try again") as caught:
            store.set_note("a", "b")
        assert caught.value.retryable
        within(10, lambda: store.set_note("a", "b"))
        assert store.note("a") == "b"
        lost.invalidate()
        lost.close()
