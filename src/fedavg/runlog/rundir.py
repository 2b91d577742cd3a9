"""A run is a directory: the plan, append-only metrics, checkpoints, the summary.

plan.toml             the plan in full
run.json              what the run was started on: the plan's digest, the data's fingerprint, versions, engine
metrics.jsonl         one line per round
checkpoints/          the last states of the server
clients/              what simulated clients keep between rounds, if they keep anything
summary.json  curve.png  model.safetensors      at the end

Everything that a resumed run needs has a digest, and is on disk before the checkpoint that depends on it.
"""

import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch

from fedavg.errors import DiskError, RunDirError
from fedavg.files import locked, sync, write_atomically
from fedavg.plan import Plan
from fedavg.runlog.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedavg.runlog.planned import as_planned, known_digests, resumed_plan
from fedavg.runlog.seals import SealedRows, chained, next_link, sealed, unchained, unsealed
from fedavg.runlog.started import check_same
from fedavg.server import Start
from fedavg.states import ClientStates
from fedavg.types import State

log = logging.getLogger("fedavg.run")

FORMAT: Final = 2
#: How many checkpoints are kept: if the newest is damaged, the previous one is used.
KEPT: Final = 2


class RunDir:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self._checkpoints = path / "checkpoints"
        #: What simulated clients keep between rounds, if anything.
        self.states = path / "clients"
        self._client_states: ClientStates | None = None
        #: The digest of the first n rows, for the last few n; what the kept checkpoints need of clients.
        self._links = {0: ""}
        #: True if this object has added a round, so that the model has changed.
        self._grown = False
        self._marks: dict[Path, Mapping[str, int]] = {}

    def check_new(self) -> None:
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            there = (self.path / "run.json").exists()
            remedy = f"To continue that run: fedavg resume {self.path}" if there else "It is no run: name another"
            raise RunDirError(f"{self.path} exists and is not empty; expected a new directory. {remedy}")

    def create(self, plan: Plan) -> None:
        self.check_new()
        try:
            self._checkpoints.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"cannot make the run directory {self.path}: {error.strerror}") from None
        write_atomically(self.path / "plan.toml", plan.to_toml().encode())
        self.metrics_path.touch()

    def write_identity(self, plan: Plan, engine: str, fingerprint: str, facts: Mapping[str, Any]) -> None:
        """What the run is started on; `facts` describe the user's own parts (`runlog.started`)."""
        identity = {
            "format": FORMAT,
            "plan": plan.digest,
            "data": fingerprint,
            "engine": engine,
            "plan_toml": _sha256(self.path / "plan.toml"),
            "versions": {"fedavg": version("fedavg"), "torch": torch.__version__, "python": platform.python_version()},
            **facts,
        }
        self.write_json("run.json", identity)

    def identity(self) -> dict[str, Any]:
        """What the run was started on; refuses a directory that is not a run."""
        path = self.path / "run.json"
        try:
            document = json.loads(path.read_bytes())
            format = document["format"]
            identity = unsealed(document) if format == FORMAT else {}
        except FileNotFoundError:
            raise RunDirError(f"{self.path} is not a run directory: it has no run.json; expected one made by "
                              "'fedavg run'") from None  # fmt: skip
        except OSError as error:
            raise unreadable(path, error) from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunDirError(
                f"{path} cannot be used: {error}; expected the JSON that 'fedavg run' wrote. Restore it from a copy, "
                "or start the run again"
            ) from None
        if not identity:
            raise RunDirError(
                f"{path} has format {format}; expected {FORMAT}. Runs of another format are not resumed: finish this "
                "one with the fedavg that started it, or start it again"
            )
        return identity

    def check_engine(self, engine: str) -> None:
        """A run continues on the engine path that it was started on, since paths may round differently.

        (Earlier versions did not record for which instructions kernels were built, which is in parentheses.)
        """
        if (self.path / "run.json").exists() and self.identity()["engine"] not in (engine, engine.partition(" (")[0]):
            raise RunDirError(
                f"{self.path} was started with engine '{self.identity()['engine']}', but here it would be '{engine}': "
                "the task or PyTorch has changed; continue where the run was started, or delete it and start again"
            )

    def check_facts(self, facts: Mapping[str, Any]) -> None:
        """A task must compute the same as when the run was started, whatever its source code says."""
        check_same(self.identity()["computed"], facts["computed"], self.path)

    def check_frozen(self, fingerprint: str) -> None:
        """The trained weights are valid only with the same frozen weights as in training."""
        recorded = self.identity().get("frozen", fingerprint)  # earlier versions did not record it
        if recorded != fingerprint:
            raise RunDirError(
                f"{self.path} was started beside frozen weights with the fingerprint {recorded}; here they have "
                f"{fingerprint or 'none'}. Expected the same: install the pretrained model that it was started with"
            )

    def plan(self, **changes: Any) -> Plan:
        """The plan as it was when the run started; runtime options may be changed, and rounds raised."""
        identity = self.identity()
        plan = resumed_plan(self.path, identity, changes)
        if _sha256(self.path / "plan.toml") != identity["plan_toml"]:
            log.warning("%s is not as it was written; what decides the result is unchanged", self.path / "plan.toml")
        return plan

    def extend(self, plan: Plan) -> None:
        """Record a plan with more rounds. Checkpoints of the shorter plan are valid for it."""
        identity = self.identity()
        if plan.digest == identity["plan"]:
            return
        text = plan.to_toml().encode()
        changed = {"plan": plan.digest, "earlier": known_digests(identity), "plan_toml": sha256(text).hexdigest()}
        self.write_json("run.json", identity | changed)
        write_atomically(self.path / "plan.toml", text)

    def append(self, row: dict[str, Any], *, durable: bool = False) -> None:
        """Append a row; it survives a crash of the machine if it is `durable`, or once a checkpoint follows."""
        count = max(self._links)
        line = next(chained([row], self._links[count]))
        try:
            with self.metrics_path.open("ab") as file:
                file.write(line)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise DiskError(f"cannot write {self.metrics_path}: {error.strerror}; free space, then resume") from error
        self._links = {count: self._links[count], count + 1: next_link(self._links[count], row)}
        self._grown = True

    def write_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        """Replace all rows by these."""
        write_atomically(self.metrics_path, b"".join(chained(rows)))
        links = list(accumulate(rows, next_link, initial=""))
        self._links = dict(list(enumerate(links))[-2:])

    def rows(self) -> list[dict[str, Any]]:
        """The recorded rounds; a last line that was cut off is ignored, a damaged line is an error."""
        found = self._rows()
        if found.damage:
            raise RunDirError(
                f"{self.metrics_path} is damaged: {found.damage}. Its first {len(found.rows)} rows are whole; "
                f"'fedavg resume {self.path}' computes the others again"
            )
        return found.rows

    def _rows(self) -> SealedRows:
        try:
            return unchained(self.metrics_path.read_bytes())
        except FileNotFoundError:
            return SealedRows([], "", None)
        except OSError as error:
            raise unreadable(self.metrics_path, error) from None

    def checkpoint(self, round: int, state: State, digest: str, row: dict[str, Any] | None = None) -> None:
        """Save the state after a round. What it depends on is made durable first: the rows, and what clients keep."""
        states = self._opened_states()
        states.tidy(round)
        mark = states.mark(round)
        self._sync_rows()
        path = self._checkpoints / f"round-{round:07d}.safetensors"
        save_checkpoint(path, Checkpoint(round, state, digest, row, self._links[max(round - 1, 0)], mark))
        self._marks[path] = mark
        for old in sorted(self._checkpoints.glob("round-*.safetensors"))[:-KEPT]:
            old.unlink()
            self._marks.pop(old, None)
        states.drop_outdated(self._marks.values())

    def rewind(self, plan: Plan, *, once: bool = False) -> Start | None:
        """Return to the newest intact checkpoint; what came after it is dropped. None: start from scratch.

        The log says what was damaged or lost, and what is therefore computed again. With `once`, recorded rounds must
        not be repeated: a run that would have to repeat some is refused.
        """
        found = self._rows()
        if found.damage:
            log.warning("%s is damaged: %s", self.metrics_path, found.damage)
        start = self._last_good(plan.digest, found)
        kept = [*found.rows[: start.round - 1], as_planned(start.row, plan)] if start and start.row else []
        recorded = self.recorded()
        if once and recorded > len(kept):
            raise RunDirError(
                f"{self.path} has rounds up to {recorded} on record, but no whole checkpoint of that round. Its noise "
                "came from OS entropy: done again, the round would be published twice. Start a new run"
            )
        if recorded > len(kept):
            log.warning("rounds %d to %d are computed again", len(kept) + 1, recorded)
        self._rewind_to(start, kept)
        return Start(start.round, start.state) if start else None

    def _rewind_to(self, start: Checkpoint | None, kept: list[dict[str, Any]]) -> None:
        """The checkpoint itself is not changed, so that this can be repeated after a crash."""
        clients = start.clients if start else {}
        for path in self._checkpoint_files():
            if not start or path.stem != f"round-{start.round:07d}":
                path.unlink()
        ClientStates.rewind(self.states, clients)
        self._client_states = None
        self._checkpoints.mkdir(exist_ok=True)
        self._marks = {self._checkpoints / f"round-{start.round:07d}.safetensors": clients} if start else {}
        self.write_rows(kept)

    def newest(self, digest: str) -> Start | None:
        """The newest intact checkpoint of the plan with this digest; None if there is none."""
        found = next(self._readable(digest), None)
        return Start(found.round, found.state) if found else None

    def _last_good(self, digest: str, found: SealedRows) -> Checkpoint | None:
        links = list(accumulate(found.rows, next_link, initial=""))
        for checkpoint in self._readable(digest):
            before = max(checkpoint.round - 1, 0)
            if before >= len(links) or links[before] != checkpoint.rows:
                log.warning(
                    "the checkpoint of round %d is not used: %s has only %d of the rows it builds on",
                    checkpoint.round, self.metrics_path, min(before, len(found.rows)),
                )  # fmt: skip
                continue
            try:
                ClientStates.verify(self.states, checkpoint.clients)
            except RunDirError as error:
                log.warning("the checkpoint of round %d is not used: %s", checkpoint.round, error)
                continue
            return checkpoint
        return None

    def _readable(self, digest: str) -> Iterator[Checkpoint]:
        for path in reversed(self._checkpoint_files()):
            try:
                checkpoint = load_checkpoint(path, [digest, *known_digests(self.identity())])
            except RunDirError as error:
                log.warning("%s; it is not used", error)
                continue
            yield checkpoint

    def _checkpoint_files(self) -> list[Path]:
        return sorted(self._checkpoints.glob("round-*.safetensors"))

    def recorded(self) -> int:
        """The last round that left any trace, intact or not."""
        named = [path.stem.removeprefix("round-") for path in self._checkpoint_files()]
        lines = self.metrics_path.read_bytes().count(b"\n") if self.metrics_path.exists() else 0
        return max([lines, *(int(name) for name in named if name.isdecimal())])

    def _opened_states(self) -> ClientStates:
        if self._client_states is None:
            self._client_states = ClientStates(self.states)
        return self._client_states

    def _sync_rows(self) -> None:
        try:
            sync(self.metrics_path)
        except OSError as error:
            raise DiskError(f"cannot write {self.metrics_path}: {error.strerror}; free space, then resume") from error

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        path = self.path / name
        if path.exists() and not _is_sealed(path.read_bytes()):
            log.warning("%s was damaged; it is written again", path)
        write_atomically(path, (json.dumps(sealed(content), indent=2) + "\n").encode())

    def write_model(self, data: bytes) -> None:
        path = self.path / "model.safetensors"
        if path.exists() and not self._grown and path.read_bytes() != data:
            log.warning("%s was not the model of this run; it is written again", path)
        write_atomically(path, data)

    def locked(self) -> AbstractContextManager[None]:
        """Only one process writes to a run directory."""
        busy = RunDirError(f"{self.path} is in use by another process; wait for it or stop it")
        return locked(self.path / "lock", busy)


def unreadable(path: Path, error: OSError) -> RunDirError:
    return RunDirError(f"cannot read {path}: {error.strerror}; expected a run of this user, or the right to read it")


def _sha256(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _is_sealed(data: bytes) -> bool:
    try:
        unsealed(json.loads(data))
    except (ValueError, RecursionError):
        return False
    return True
