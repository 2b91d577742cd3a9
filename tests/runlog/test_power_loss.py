"""A run goes on with the same bits from whatever a power loss leaves: only what was synced is sure to be there."""

import os
import stat
from pathlib import Path

import pytest

import fedavg
from toys import TOY, toy_data, toy_plan


class Disk:
    """What would be left of a directory if the power failed now, by what was synced so far.

    A file has the bytes that it had when it was last synced; a folder has the names that it had then. With `zeros`, a
    file is as long as it was, and what was not synced of it reads as zeros, as some file systems leave it.
    """

    def __init__(self, root, monkeypatch):
        self.root = root
        self.files: dict[int, bytes] = {}
        self.folders: dict[str, dict[str, int]] = {}
        self.left: list[dict[str, bytes]] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.synced)

    def synced(self, handle):
        self._fsync(handle)
        status, path = os.fstat(handle), str(Path(f"/proc/self/fd/{handle}").readlink())
        if not path.startswith(str(self.root)):
            return
        if stat.S_ISDIR(status.st_mode):
            self.folders[path] = {entry.name: entry.inode() for entry in os.scandir(path) if entry.is_file()}
        else:
            self.files[status.st_ino] = Path(path).read_bytes()
        self.left.append(self.now())

    def now(self):
        names = {f"{folder}/{name}": inode for folder in self.folders for name, inode in self.folders[folder].items()}
        return {path: self.files.get(inode, b"") for path, inode in names.items()}


def restore(left, root, target, lengths):
    for path, content in left.items():
        there = target / os.path.relpath(path, root)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content.ljust(lengths.get(path, 0), b"\0"))


KEEPING = [{"algorithm": "scaffold"}, {"codec": "stc:0.05", "downlink": "stc:0.05"}]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to name what is synced")
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("options", KEEPING, ids=["scaffold", "stc"])
def test_after_a_power_loss_at_any_moment_the_bits_are_the_same(tmp_path, monkeypatch, options, zeros, every):
    def plan():
        return toy_plan(rounds=5, workers=1, C=1, checkpoint_s=0, **options)

    expected = fedavg.run(plan()).summary
    run = tmp_path / "run"
    disk = Disk(run, monkeypatch)
    fedavg.run(plan(), run)
    monkeypatch.undo()
    moments = [left for before, left in zip([None, *disk.left], disk.left, strict=False) if left != before]
    begun = [left for left in moments if left.get(f"{run}/run.json")]
    assert len(begun) > 15
    lengths = {str(path): path.stat().st_size for path in run.rglob("*.states")} if zeros else {}
    for number, left in enumerate(begun[zeros % every :: every]):
        target = tmp_path / f"left {number}"
        restore(left, run, target, lengths)
        got = fedavg.resume(target, task=TOY, data=toy_data()).summary
        assert got.model_sha256 == expected.model_sha256
        assert (got.rounds, got.bytes_up, got.bytes_down) == (5, expected.bytes_up, expected.bytes_down)


@pytest.mark.parametrize("options", KEEPING, ids=["scaffold", "stc"])
def test_rows_that_are_lost_though_a_checkpoint_builds_on_them_are_told_of(tmp_path, caplog, options):
    """A disk that lied about a sync: the checkpoint is of no use, clients go back too, and the run says so."""
    expected = fedavg.run(toy_plan(rounds=6, **options)).summary.model_sha256

    def stop(event):
        if event.round == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fedavg.run(toy_plan(rounds=6, checkpoint_s=0, **options), tmp_path / "run", stop)
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:2]))
    assert fedavg.resume(tmp_path / "run", task=TOY, data=toy_data()).summary.model_sha256 == expected
    assert "the checkpoint of round 5 is not used" in caplog.text
    assert "has only 2 of the rows it builds on" in caplog.text
    assert "rounds 1 to 5 are computed again" in caplog.text
