"""A run is a directory: the plan, append-only metrics, checkpoints, the summary.

plan.toml             the plan in full
run.json              what the run was started on: the plan's digest, the data's fingerprint, versions, engine
metrics.jsonl         one line per round
checkpoints/          the last states of the server
summary.json  curve.png  model.safetensors      at the end
"""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from fedavg.errors import DiskError, PlanError, RunDirError
from fedavg.files import write_atomically
from fedavg.plan import Plan, load_plan
from fedavg.runlog.checkpoint import load_state, save_state
from fedavg.server import Start
from fedavg.states import ClientStates
from fedavg.types import State

FORMAT: Final = 1
#: Checkpoints kept: should the newest turn out torn, the one before it serves.
KEPT: Final = 2


class RunDir:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self._checkpoints = path / "checkpoints"
        #: What simulated clients keep between rounds, where they keep anything.
        self.states = path / "clients"

    def check_new(self) -> None:
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise RunDirError(
                f"{self.path} exists and is not empty; expected a new directory. "
                f"To go on with that run: fedavg resume {self.path}"
            )

    def create(self, plan: Plan) -> None:
        self.check_new()
        try:
            self._checkpoints.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"can not make the run directory {self.path}: {error.strerror}") from None
        write_atomically(self.path / "plan.toml", plan.to_toml().encode())
        self.metrics_path.touch()

    def write_identity(self, plan: Plan, engine: str, fingerprint: str) -> None:
        identity = {
            "format": FORMAT,
            "plan": plan.digest,
            "data": fingerprint,
            "engine": engine,
            "versions": {"fedavg": version("fedavg"), "torch": torch.__version__, "python": platform.python_version()},
        }
        self.write_json("run.json", identity)

    def identity(self) -> dict[str, Any]:
        """What the run was started on; refuses a directory that is no run of ours."""
        path = self.path / "run.json"
        try:
            identity = json.loads(path.read_text())
            known = identity["format"] == FORMAT
        except FileNotFoundError:
            raise RunDirError(f"{self.path} is not a run directory: it has no run.json; expected one made by "
                              "'fedavg run'") from None  # fmt: skip
        except (ValueError, KeyError, TypeError):
            raise RunDirError(f"{path} can not be read; expected the JSON that 'fedavg run' wrote") from None
        if not known:
            raise RunDirError(f"{path} has format {identity['format']}; expected {FORMAT}: use a matching fedavg")
        assert isinstance(identity, dict)
        return identity

    def check_engine(self, engine: str) -> None:
        """A run goes on by the path that it was started on, since paths may round differently."""
        if (self.path / "run.json").exists() and self.identity()["engine"] != engine:
            raise RunDirError(
                f"{self.path} was started with engine '{self.identity()['engine']}', but here it would be '{engine}': "
                "the task or PyTorch has changed; go on where the run was started, or delete it to begin anew"
            )

    def plan(self, **objects: Any) -> Plan:
        """The plan as it was when the run started; a changed one is refused (runtime options may be changed)."""
        identity = self.identity()
        try:
            plan = load_plan(str(self.path / "plan.toml"), objects)
        except PlanError as error:
            raise RunDirError(f"the plan of {self.path} can not be used: {error}") from None
        if plan.digest != identity["plan"]:
            raise RunDirError(
                f"{self.path / 'plan.toml'} has been changed since the run was started (digest {plan.digest}; expected "
                f"{identity['plan']}). Undo the change, or start a new run: fedavg run {self.path / 'plan.toml'}"
            )
        return plan

    def append(self, row: dict[str, Any], *, durable: bool = False) -> None:
        try:
            with self.metrics_path.open("a") as file:
                file.write(json.dumps(row) + "\n")
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise DiskError(f"can not write {self.metrics_path}: {error.strerror}; free space, then resume") from error

    def rows(self) -> list[dict[str, Any]]:
        """The rounds on record, 1 to the last that is whole; a torn line and what follows it do not count."""
        if not self.metrics_path.exists():
            return []
        rows: list[dict[str, Any]] = []
        for line in self.metrics_path.read_bytes().splitlines(keepends=True):
            row = _whole_row(line)
            if row is None or row["round"] != len(rows) + 1:
                break
            rows.append(row)
        return rows

    def checkpoint(self, round: int, state: State, digest: str, row: dict[str, Any] | None = None) -> None:
        save_state(self._checkpoints / f"round-{round:07d}.safetensors", round, state, digest, row)
        checkpoints = sorted(self._checkpoints.glob("round-*.safetensors"))
        for old in checkpoints[:-KEPT]:
            old.unlink()
        if self.states.exists():
            oldest = checkpoints[-KEPT:][0]
            ClientStates(self.states).settle(int(oldest.stem.removeprefix("round-")))

    def rewind(self, digest: str, *, once: bool = False) -> Start | None:
        """The newest whole checkpoint that the metrics reach up to; metrics after it are dropped. None: start anew.

        A checkpoint brings the row of its own round, which may have been lost with the process. With `once`, what is on
        record may not be done again: a run that would have to is refused.
        """
        rows = self.rows()
        start, kept = self._last_good(digest, rows)
        if once and len(rows) > len(kept):
            raise RunDirError(
                f"{self.path} has rounds up to {len(rows)} on record, but no whole checkpoint of that round. Its noise "
                "came from the system's entropy: done again, the round would be published twice. Start a new run"
            )
        write_atomically(self.metrics_path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        return start

    def newest(self, digest: str) -> Start | None:
        """The newest whole checkpoint of the plan with this digest; None if there is none."""
        return next((start for start, _ in self._readable(digest)), None)

    def _last_good(self, digest: str, rows: list[dict[str, Any]]) -> tuple[Start | None, list[dict[str, Any]]]:
        for start, row in self._readable(digest):
            kept = rows[: start.round]
            if row and len(kept) == start.round - 1:
                kept = [*kept, row]
            if len(kept) == start.round:
                return start, kept
        return None, []

    def _readable(self, digest: str) -> Iterator[tuple[Start, dict[str, Any] | None]]:
        for path in sorted(self._checkpoints.glob("round-*.safetensors"), reverse=True):
            try:
                round, state, row = load_state(path, digest)
            except RunDirError:
                continue
            yield Start(round, state), row

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process writes to a run directory; the system releases the lock when it ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            yield
            return
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunDirError(f"{self.path} is in use by another process; wait for it or stop it") from None
            yield


def _whole_row(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None
