"""Copies of a server's databases and of its runs' records, made while it serves; and a server restored from a copy.

A copy is a folder of SQLite files, whatever the database is. The server may have used numbers after the copy was made:
a restored server never reuses such a number, neither of an attempt, which devices may have answered, nor of a run.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Final

from fedavg.errors import FleetError
from fedavg.files import sync, write_atomically
from fedavg.fleets.http.server.store import ChangeLog, Runs, Store
from fedavg.fleets.http.server.store.address import file_of, is_postgresql
from fedavg.fleets.http.server.store.copies import copy_file, copy_into, schema_of, snapshot

MANIFEST: Final = "backup.json"
DATABASE: Final = "fleet.db"
#: The files of a run's folder besides its database; secrets such as tokens are not copied.
RECORDS: Final = ("plan.toml", "run.json", "metrics.jsonl", "ledger.jsonl", "summary.json", "model.safetensors")


@dataclass(frozen=True)
class Manifest:
    """The contents of a copy. `files` maps each file's path to its SHA-256."""

    fedavg: str
    schema: int
    #: Seconds since 1970.
    made: int
    runs: list[int]
    files: dict[str, str]


def back_up(target: Path, directory: Path, database: str | None = None) -> Manifest:
    """Copy a server, which may be running, into the new folder `target`."""
    _check_empty(target, "a new folder for the copy")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = int(time())
    # Records first, then runs, then the service: later copies may be newer, and take precedence.
    if is_postgresql(database):
        assert database
        with snapshot(database) as moment:
            runs = moment.runs()
            _copy_records(directory, target, runs)
            for number in runs:
                moment.copy(_run(target, number) / DATABASE, number)
            moment.copy(target / DATABASE)
    else:
        runs = sorted(int(file.parent.name) for file in directory.glob(f"runs/*/{DATABASE}"))
        _copy_records(directory, target, runs)
        for number in runs:
            copy_file(_run(directory, number) / DATABASE, _run(target, number) / DATABASE)
        copy_file(file_of(database) if database else directory / DATABASE, target / DATABASE)
    files = {str(file.relative_to(target)): _digest(file) for file in _files(target)}
    manifest = Manifest(version("fedavg"), schema_of(target / DATABASE) or 0, made, runs, files)
    write_atomically(target / MANIFEST, json.dumps(asdict(manifest), indent=2).encode(), private=True)
    return manifest


def restore(copy: Path, directory: Path, database: str | None = None, nothing_since: bool = False) -> Manifest:
    """A server from a copy, in a new folder and a new database; start it like the original.

    `nothing_since`: the operator asserts that no server has run since the copy was made. Otherwise private runs, and
    runs whose devices keep something between rounds, do not continue: there is no record of what happened since.
    """
    manifest = _checked(copy)
    _check_empty(directory, "a new run directory: move the old one away, and keep it")
    directory.mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        place = directory / file
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(file).name != DATABASE:
            shutil.copyfile(copy / file, place)
        elif not is_postgresql(database):
            own = file_of(database) if database and file == DATABASE else place
            if own.exists():
                raise FleetError(f"{own} is there already; expected a new file to restore into")
            copy_file(copy / file, own)
    if is_postgresql(database):
        assert database
        for run in (*manifest.runs, None):
            copy_into(copy / DATABASE if run is None else _run(copy, run) / DATABASE, database, run)
    _mark(manifest, directory, database, nothing_since)
    return manifest


def _mark(manifest: Manifest, directory: Path, database: str | None, nothing_since: bool) -> None:
    """Mark each run's own record as a copy, with the time of the copy."""
    with Store.open(database or directory / DATABASE) as store:
        if not nothing_since:
            Runs(store.connections).restored()
        if store.run() is not None:
            ChangeLog(store.connections).restored(manifest.made, time(), nothing_since)
    for number in manifest.runs:
        place = (str(database), f"run_{number}") if is_postgresql(database) else (_run(directory, number) / DATABASE,)
        with Store.open(*place) as store:
            ChangeLog(store.connections).restored(manifest.made, time(), nothing_since)


def _checked(copy: Path) -> Manifest:
    try:
        manifest = Manifest(**json.loads((copy / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise FleetError(f"{copy} is not a copy of a server ({error}); expected what 'fedavg backup' made") from None
    for file, digest in manifest.files.items():
        if not (copy / file).resolve().is_relative_to(copy.resolve()):
            raise FleetError(f"{copy / MANIFEST} names '{file}'; expected only files inside {copy}: take another copy")
        if not (copy / file).is_file() or _digest(copy / file) != digest:
            raise FleetError(f"{copy / file} is damaged or missing; expected SHA-256 {digest}: take another copy")
    return manifest


def _copy_records(directory: Path, target: Path, runs: list[int]) -> None:
    for source, place in [(directory, target), *((_run(directory, n), _run(target, n)) for n in runs)]:
        place.mkdir(parents=True, exist_ok=True)
        for name in RECORDS:
            if (source / name).is_file():
                shutil.copyfile(source / name, place / name)


def _run(directory: Path, number: int) -> Path:
    return directory / "runs" / str(number)


def _files(target: Path) -> Iterator[Path]:
    for file in sorted(target.rglob("*")):
        if file.is_file():
            sync(file)
            yield file


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        found = sha256()
        while block := content.read(2**20):
            found.update(block)
    return found.hexdigest()


def _check_empty(directory: Path, expected: str) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FleetError(f"{directory} is not empty; expected {expected}")
