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
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from fedavg.errors import DiskError, PlanError, RunDirError
from fedavg.files import write_atomically
from fedavg.plan import Plan, make_plan
from fedavg.runlog.checkpoint import load_state, save_state
from fedavg.runlog.started import check_same, own_parts
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
            there = (self.path / "run.json").exists()
            remedy = f"To go on with that run: fedavg resume {self.path}" if there else "It is no run: name another one"
            raise RunDirError(f"{self.path} exists and is not empty; expected a new directory. {remedy}")

    def create(self, plan: Plan) -> None:
        self.check_new()
        try:
            self._checkpoints.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"can not make the run directory {self.path}: {error.strerror}") from None
        write_atomically(self.path / "plan.toml", plan.to_toml().encode())
        self.metrics_path.touch()

    def write_identity(self, plan: Plan, engine: str, fingerprint: str, facts: Mapping[str, Any]) -> None:
        """What the run is started on; `facts` tell of parts of the user's own (`runlog.started`)."""
        identity = {
            "format": FORMAT,
            "plan": plan.digest,
            "data": fingerprint,
            "engine": engine,
            "versions": {"fedavg": version("fedavg"), "torch": torch.__version__, "python": platform.python_version()},
            **facts,
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

    def check_facts(self, facts: Mapping[str, Any]) -> None:
        """A task must compute what it did when the run was started, whatever its source says."""
        if "computed" in self.identity():  # not in runs of earlier versions
            check_same(self.identity()["computed"], facts["computed"], self.path)

    def plan(self, **changes: Any) -> Plan:
        """The plan as it was when the run started, with runtime options changed, and more rounds if they are asked for.

        Objects from Python must be given again, since no file holds them. Any other change is refused.
        """
        values = self._values(changes)
        try:
            begun = make_plan(values | {name: value for name, value in changes.items() if _is_object(values, name)})
            plan = make_plan(_options(begun) | changes, str(self.path))
        except PlanError as error:
            raise RunDirError(f"the plan of {self.path} can not be used: {error}") from None
        identity = self.identity()
        if "parts" in identity:  # not in runs of earlier versions
            check_same(identity["parts"], own_parts(begun), self.path)
        if begun.digest not in (identity["plan"], *identity.get("earlier", ())):
            raise RunDirError(
                f"{self.path / 'plan.toml'} has been changed since the run was started (digest {begun.digest}; "
                f"expected {identity['plan']}). Undo the change, or start a new run: fedavg run "
                f"{self.path / 'plan.toml'}"
            )
        self._check_changes(begun, plan)
        return plan

    def _values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What plan.toml says; objects that it can not hold must be among what is given."""
        self.identity()  # refuses what is no run
        try:
            values = tomllib.loads((self.path / "plan.toml").read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunDirError(
                f"the plan of {self.path} can not be read: {error}; expected plan.toml as it was"
            ) from None
        missing = [name for name in values if _is_object(values, name) and name not in given]
        if missing:
            wanted = ", ".join(f"{name}=..." for name in missing)
            raise RunDirError(
                f"{self.path} was started from Python with objects that no file can hold ({', '.join(missing)}); "
                f"give them again: fedavg.resume({str(self.path)!r}, {wanted})"
            )
        return values

    def _check_changes(self, begun: Plan, plan: Plan) -> None:
        for spec in fields(Plan):
            before, after = getattr(begun, spec.name), getattr(plan, spec.name)
            if spec.metadata["runtime"] or before == after:
                continue
            if spec.name != "rounds":
                raise RunDirError(
                    f"{spec.name}: {self.path} was started with {before}; got {after}. A run keeps its plan: only "
                    "rounds may be raised and runtime options changed; start a new run for others"
                )
            if after < before:
                raise RunDirError(f"rounds: {self.path} has {before}; got {after}. A run can only be made longer")

    def extend(self, plan: Plan) -> None:
        """Note a plan with more rounds. Checkpoints of the shorter one count as this one's."""
        identity = self.identity()
        if plan.digest == identity["plan"]:
            return
        earlier = [*identity.get("earlier", ()), identity["plan"]]
        self.write_json("run.json", identity | {"plan": plan.digest, "earlier": earlier})
        write_atomically(self.path / "plan.toml", plan.to_toml().encode())

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

    def rewind(self, plan: Plan, *, once: bool = False) -> Start | None:
        """The newest whole checkpoint that the metrics reach up to; metrics after it are dropped. None: start anew.

        A checkpoint brings the row of its own round, which may have been lost with the process. With `once`, what is on
        record may not be done again: a run that would have to is refused.
        """
        rows = self.rows()
        start, kept = self._last_good(plan.digest, rows)
        if once and len(rows) > len(kept):
            raise RunDirError(
                f"{self.path} has rounds up to {len(rows)} on record, but no whole checkpoint of that round. Its noise "
                "came from the system's entropy: done again, the round would be published twice. Start a new run"
            )
        planned = [_as_planned(row, plan) for row in kept]
        write_atomically(self.metrics_path, "".join(json.dumps(row) + "\n" for row in planned).encode())
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
        identity = self.identity()
        digests = [digest, identity["plan"], *identity.get("earlier", ())]  # the run may just have been made longer
        for path in sorted(self._checkpoints.glob("round-*.safetensors"), reverse=True):
            for known in digests:
                with suppress(RunDirError):
                    round, state, row = load_state(path, known)
                    yield Start(round, state), row
                    break

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


def _is_object(values: Mapping[str, Any], name: str) -> bool:
    """True if plan.toml only says that there was an object."""
    items = values.get(name)
    return any(str(item).startswith("object:") for item in (items if isinstance(items, list) else [items]))


def _as_planned(row: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """A run that is made longer has a round that was evaluated only because it was the last."""
    extra = row["round"] % plan.eval_every and row["round"] < plan.rounds
    return row | {"test": None, "train": None} if extra else row


def _options(plan: Plan) -> dict[str, Any]:
    return {spec.name: getattr(plan, spec.name) for spec in fields(Plan)}


def _whole_row(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None
