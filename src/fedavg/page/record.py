"""One run directory as it is on disk: read piece by piece, while it grows, in whatever state it is.

Nothing here writes or takes the run's lock: the page must not keep a run from starting.
"""

import json
import os
import tomllib
from array import array
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, Final

import numpy as np

from fedavg.page.columns import GrowingColumns
from fedavg.runlog.seals import unchained, unsealed

#: How many bytes of metrics.jsonl are read at a time.
PIECE: Final = 2**21
#: A run without a known lock counts as running for this many times its time per round, and at least so many seconds.
FRESH_PACES: Final = 5.0
FRESH_S: Final = 20.0
#: Files that identify a directory as a run.
MARKS: Final = ("run.json", "plan.toml", "metrics.jsonl")
#: The format of run.json that this version reads.
FORMAT: Final = 2

Document = dict[str, Any]


@dataclass(frozen=True)
class RunState:
    """`word`: running, stopped, reading, torn, damaged, foreign, or what the summary says; `notes` say why."""

    word: str
    notes: tuple[str, ...] = ()


class RunFiles:
    """The files of one run."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.id = sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]
        self._stamps: object = None
        self._held = False
        self.state = RunState("reading")
        self.plan: Document = {}
        self.identity: Document = {}
        self.summary: Document = {}
        self._problems: dict[str, str] = {}
        self.changed = 0.0
        self._forget()

    def _forget(self) -> None:
        self.columns, self._starts, self._link, self._offset = GrowingColumns(), array("q"), "", 0
        #: In how many rounds each client reported, if rows say who did.
        self.reported: Counter[int] = Counter()
        self._inode, self._damage = 0, ""
        #: Is there more to read; was the last line cut off?
        self._more = self._torn = False

    @property
    def rounds(self) -> int:
        return self.columns.count

    def refresh(self, locked: frozenset[int] = frozenset()) -> bool:
        """Read what is new, at most one piece; True if anything is. `locked`: inodes of locked files."""
        lock = _stamp(self.path / "lock")
        self._held = lock is not None and lock[0] in locked
        stamps = tuple(_stamp(self.path / name) for name in (*MARKS, "summary.json"))
        if stamps != self._stamps or self._more:
            self._stamps = stamps
            self.changed = max((stamp[2] for stamp in stamps if stamp), default=0.0)
            self._problems = {}
            self.plan, self.identity, self.summary = self._read_plan(), self._read_identity(), self._read_summary()
            self._read_rows()
        elif self._state() == self.state:
            return False
        self.state = self._state()
        return True

    # The run's state

    def _state(self) -> RunState:
        notes = tuple(self._problems.values())
        if "foreign" in self._problems:
            return RunState("foreign", notes)
        if notes or self._damage:
            return RunState("damaged", (*notes, *([self._damage] if self._damage else [])))
        if self._more:
            return RunState("reading", ("its rows are being read",))
        if self._held or self._fresh():
            return RunState("running")
        if self._torn:
            return RunState("torn", (f"the last line, after round {self.rounds}, was cut off; 'fedavg resume' computes "
                                  "that round again",))  # fmt: skip
        return RunState(str(self.summary.get("status", "stopped")))

    def _fresh(self) -> bool:
        """True if the run has not ended, and its last row is recent enough that another is likely."""
        if self.summary:
            return False
        seconds = self.columns.get("seconds")[-50:] + self.columns.get("eval_seconds")[-50:]
        pace = float(np.median(seconds)) if len(seconds) else 0.0
        return time() - self.changed < max(FRESH_S, FRESH_PACES * pace)

    # Its files

    def _read_plan(self) -> Document:
        try:
            return tomllib.loads((self.path / "plan.toml").read_text(encoding="utf-8"))
        except FileNotFoundError:
            self._problems["foreign"] = "it has no plan.toml, which every run of fedavg has"
        except (OSError, ValueError) as error:
            self._problems["plan"] = f"plan.toml cannot be read: {_reason(error)}"
        return {}

    def _read_identity(self) -> Document:
        """What run.json says; a served run has none."""
        document = self._json("run.json")
        if document is None:
            return {}
        if not isinstance(document, dict) or "format" not in document or document["format"] != FORMAT:
            format = document.get("format") if isinstance(document, dict) else None
            self._problems["foreign"] = f"run.json has format {format}; this version reads format {FORMAT}"
            return {}
        return self._unsealed("run.json", document)

    def _read_summary(self) -> Document:
        document = self._json("summary.json")
        return {} if document is None else self._unsealed("summary.json", document)

    def _json(self, name: str) -> object:
        try:
            return json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._problems[name] = f"{name} cannot be read: {_reason(error)}"
            return None

    def _unsealed(self, name: str, document: object) -> Document:
        try:
            return unsealed(document)
        except ValueError as error:
            self._problems[name] = f"{name}: {error}"
            return {}

    # Its rows

    def _read_rows(self) -> None:
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset or self._damage:
                    self._forget()
                    self._inode = stat.st_ino
                file.seek(self._offset)
                data = file.read(PIECE)
                self._add(data)
                self._torn = not data.endswith(b"\n") and bool(data)
                self._more = len(data) == PIECE and not self._damage
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            self._problems["metrics.jsonl"] = f"metrics.jsonl cannot be read: {_reason(error)}"

    def _add(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            if len(data) >= PIECE:
                self._damage = f"metrics.jsonl, line {self.rounds + 1}: longer than {PIECE} bytes"
            return
        found = unchained(whole, self._link, self.rounds)
        lines = whole.splitlines(keepends=True)[: len(found.rows)]
        for line in lines:
            self._starts.append(self._offset)
            self._offset += len(line)
        self.columns.extend(found.rows)
        for row in found.rows:
            self.reported.update(_who_reported(row))
        self._link = found.link
        if found.damage:
            self._damage = f"metrics.jsonl: {found.damage}; 'fedavg resume' computes what follows again"

    def row(self, round: int) -> Document | None:
        """The row of a round, read from disk; None if there is none."""
        if not 1 <= round <= len(self._starts):
            return None
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                file.seek(self._starts[round - 1])
                found = json.loads(file.readline())
        except (OSError, ValueError):
            return None  # rewritten just now: the next refresh reads it again
        return found if isinstance(found, dict) and found.get("round") == round else None


def _who_reported(row: Document) -> list[int]:
    who = (row.get("cohort") or {}).get("who")
    if not who:
        return []
    return [k for k, outcome in zip(who["client"], who["outcome"], strict=False) if outcome == "reported"]


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _stamp(path: Path) -> tuple[int, int, float] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime


def locked_inodes() -> frozenset[int]:
    """Inodes of files that a process has locked; empty if the system does not say."""
    try:
        text = Path("/proc/locks").read_text()
    except OSError:
        return frozenset()
    return frozenset(int(part.rpartition(":")[2]) for part in text.split() if part.count(":") == 2)
