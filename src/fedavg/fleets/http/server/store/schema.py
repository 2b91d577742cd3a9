"""The tables of a run, and how an older database is migrated to them."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    inspect,
    text,
)

#: Every row has a digest of its other columns (see `sealed.py`).
DIGEST: Final = "digest"
#: Marks a column that older databases lack, or that an older replica leaves null.
LATER: Final = "later"

metadata = MetaData()


def _table(name: str, *parts: Column[object] | CheckConstraint) -> Table:
    return Table(name, metadata, *parts, Column(DIGEST, Text, nullable=False, server_default=""))


meta = _table("meta", Column("key", Text, primary_key=True), Column("value", Text, nullable=False))
run = _table(
    "run",
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("plan_toml", Text, nullable=False),
    Column("plan_digest", Text, nullable=False),
    Column("engine", Text, nullable=False),
)
notes = _table("notes", Column("key", Text, primary_key=True), Column("value", Text, nullable=False))
tokens = _table(
    "tokens",
    Column("hash", LargeBinary, primary_key=True),
    Column("uses", BigInteger, CheckConstraint("uses >= 0")),
    Column("label", Text, nullable=False),
    Column("client", BigInteger, CheckConstraint("client >= 0")),
    Column("expires", BigInteger),
    Column("used", BigInteger, nullable=False, server_default="0"),
)
clients = _table(
    "clients",
    Column("k", BigInteger, CheckConstraint("k >= 0"), primary_key=True, autoincrement=False),
    Column("key", LargeBinary, nullable=False, unique=True),
    Column("token", LargeBinary, nullable=False),
    Column("examples", BigInteger, CheckConstraint("examples >= 0"), nullable=False),
    Column("name", Text, nullable=False),
    Column("revoked", Integer, nullable=False, server_default="0"),
    Column("enrolled", BigInteger, nullable=False, server_default="0"),
    Column("address", Text, nullable=False, server_default=""),
    Column("approved", Integer, nullable=False, server_default="1"),
    #: Grows with every change to any client: a reader that has seen all rows up to a number asks for those above it.
    Column("changed", BigInteger, info={LATER: True}),
    #: The tasks that its owner allows: a JSON list; null if not stated.
    Column("tasks", Text, info={LATER: True}),
)
rounds = _table(
    "rounds",
    Column("round", BigInteger, CheckConstraint("round >= 1"), primary_key=True, autoincrement=False),
    Column("attempt", BigInteger, CheckConstraint("attempt >= 0"), primary_key=True, autoincrement=False),
    Column("state", Text, CheckConstraint("state IN ('collecting', 'abandoned', 'done')"), nullable=False),
    Column("cohort", Text, nullable=False),
    Column("model_sha256", Text, nullable=False),
    Column("reason", Text),
    Column("metrics", Text),
    Column("counted", Text),
    #: 1 if it was committed and the run was later rolled back to an earlier round: what it released stays released.
    Column("undone", Integer, info={LATER: True}),
)
states = _table(
    "states",
    Column("round", BigInteger, primary_key=True, autoincrement=False),
    Column("model_sha256", Text, nullable=False),
    Column("blob_sha256", Text, nullable=False),
    Column("blob", LargeBinary, nullable=False),
)
ledger = _table(
    "ledger", Column("round", BigInteger, primary_key=True, autoincrement=False), Column("entry", Text, nullable=False)
)
#: Operators' changes to a run: more rounds, another rate, a return to an earlier round, a restored copy.
changes = _table(
    "changes",
    Column("number", BigInteger, CheckConstraint("number >= 1"), primary_key=True, autoincrement=False),
    Column("what", Text, nullable=False),
    Column("after_round", BigInteger, nullable=False),
    #: Seconds since 1970.
    Column("at", BigInteger, nullable=False),
    Column("by", Text, nullable=False),
    Column("entry", Text, nullable=False),
)

runs = _table(
    "runs",
    Column("number", BigInteger, CheckConstraint("number >= 1"), primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("plan_toml", Text, nullable=False),
    Column("plan_digest", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("detail", Text, nullable=False),
    #: When it was submitted, in seconds since 1970, and by which token (its label).
    Column("submitted", BigInteger, nullable=False),
    Column("by", Text, nullable=False),
    #: Changes made after it was submitted: a JSON list.
    Column("changes", Text, nullable=False),
    #: The model that it starts from, safetensors, and its SHA-256; null if it starts from its task's own.
    Column("init_sha256", Text),
    Column("init", LargeBinary),
)
#: Operators' tokens besides the operator's own; each is identified by its label.
roles = _table(
    "roles",
    Column("hash", LargeBinary, primary_key=True),
    Column("role", Text, nullable=False),
    Column("label", Text, nullable=False, unique=True),
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger),
)
#: When a client was last seen (seconds since 1970), what it runs, and how often it failed since an update counted.
sightings = _table(
    "sightings",
    Column("k", BigInteger, CheckConstraint("k >= 0"), primary_key=True, autoincrement=False),
    Column("seen", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("failures", BigInteger, CheckConstraint("failures >= 0"), nullable=False),
    Column("failure", Text, nullable=False),
)

Index("clients_by_change", clients.c.changed)
for name, column, state in (
    ("one_round_is_open", rounds.c.state, "collecting"),
    ("a_round_is_done_once", rounds.c.round, "done"),
):
    where = text(f"state = '{state}'")
    Index(name, column, unique=True, sqlite_where=where, postgresql_where=where)


#: Step i takes a database from schema i to schema i + 1. A released step is never edited; later steps correct it. A new
#: database is made directly from the tables above. Replicas of the previous version keep running during a step, so it
#: may add only tables and nullable columns, which the new version leaves null until all replicas know them.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), plan_toml TEXT NOT NULL, plan_digest TEXT NOT NULL,"
        " engine TEXT NOT NULL)",
        "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE tokens (hash {blob} PRIMARY KEY, uses BIGINT CHECK (uses >= 0), label TEXT NOT NULL,"
        " client BIGINT CHECK (client >= 0))",
        "CREATE TABLE clients (k BIGINT PRIMARY KEY CHECK (k >= 0), key {blob} NOT NULL UNIQUE, token {blob} NOT NULL,"
        " examples BIGINT NOT NULL CHECK (examples >= 0), name TEXT NOT NULL, revoked INTEGER NOT NULL DEFAULT 0)",
        "CREATE TABLE rounds (round BIGINT NOT NULL CHECK (round >= 1), attempt BIGINT NOT NULL CHECK (attempt >= 0),"
        " state TEXT NOT NULL CHECK (state IN ('collecting', 'abandoned', 'done')), cohort TEXT NOT NULL,"
        " model_sha256 TEXT NOT NULL, reason TEXT, metrics TEXT, counted TEXT, PRIMARY KEY (round, attempt))",
        "CREATE UNIQUE INDEX one_round_is_open ON rounds (state) WHERE state = 'collecting'",
        "CREATE UNIQUE INDEX a_round_is_done_once ON rounds (round) WHERE state = 'done'",
        "CREATE TABLE states (round BIGINT PRIMARY KEY, model_sha256 TEXT NOT NULL, blob_sha256 TEXT NOT NULL,"
        " blob {blob} NOT NULL)",
        "CREATE TABLE ledger (round BIGINT PRIMARY KEY, entry TEXT NOT NULL)",
    ),
    (
        "ALTER TABLE tokens ADD COLUMN expires BIGINT",
        "ALTER TABLE tokens ADD COLUMN used BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE clients ADD COLUMN enrolled BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE clients ADD COLUMN address TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE clients ADD COLUMN approved INTEGER NOT NULL DEFAULT 1",
    ),
    tuple(
        f"ALTER TABLE {table} ADD COLUMN digest TEXT NOT NULL DEFAULT ''"
        for table in ("meta", "run", "notes", "tokens", "clients", "rounds", "states", "ledger")
    ),
    ("ALTER TABLE clients ADD COLUMN changed BIGINT", "CREATE INDEX clients_by_change ON clients (changed)"),
    (
        "ALTER TABLE clients ADD COLUMN tasks TEXT",
        "CREATE TABLE runs (number BIGINT PRIMARY KEY CHECK (number >= 1), name TEXT NOT NULL, plan_toml TEXT NOT NULL,"
        ' plan_digest TEXT NOT NULL, state TEXT NOT NULL, detail TEXT NOT NULL, submitted BIGINT NOT NULL, "by" TEXT'
        " NOT NULL, changes TEXT NOT NULL, init_sha256 TEXT, init {blob}, digest TEXT NOT NULL DEFAULT '')",
    ),
    (
        "CREATE TABLE roles (hash {blob} PRIMARY KEY, role TEXT NOT NULL, label TEXT NOT NULL UNIQUE, made BIGINT NOT"
        " NULL, expires BIGINT, digest TEXT NOT NULL DEFAULT '')",
        "CREATE TABLE sightings (k BIGINT PRIMARY KEY CHECK (k >= 0), seen BIGINT NOT NULL, version TEXT NOT NULL,"
        " failures BIGINT NOT NULL CHECK (failures >= 0), failure TEXT NOT NULL, digest TEXT NOT NULL DEFAULT '')",
    ),
    (
        "ALTER TABLE rounds ADD COLUMN undone INTEGER",
        "CREATE TABLE changes (number BIGINT PRIMARY KEY CHECK (number >= 1), what TEXT NOT NULL, after_round BIGINT"
        " NOT NULL, at BIGINT NOT NULL, \"by\" TEXT NOT NULL, entry TEXT NOT NULL, digest TEXT NOT NULL DEFAULT '')",
    ),
]


def found_schema(connection: Connection) -> int | None:
    """The schema step of a database; None if it is empty."""
    if not inspect(connection).has_table("meta"):
        return None
    value = connection.exec_driver_sql("SELECT value FROM meta WHERE key = 'schema'").scalar()
    return int(value) if isinstance(value, str) and value.isdecimal() else 0 if value is None else -1


def bring_up_to_date(connection: Connection, found: int | None, blob_type: str) -> None:
    if found is None:
        metadata.create_all(connection)
        later = MIGRATIONS[LATEST:]
    else:
        later = MIGRATIONS[found:]
    for statement in (statement for step in later for statement in step):
        connection.exec_driver_sql(statement.format(blob=blob_type))


#: The schema of the tables above.
LATEST: Final = len(MIGRATIONS)
