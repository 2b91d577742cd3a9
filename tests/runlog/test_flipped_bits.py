"""One flipped bit in any file of a run: it is found and named, and the run has the same result or none."""

import logging
import shutil
from random import Random

import pytest

import fedavg
from fedavg.errors import FedAvgError
from fedavg.runlog.rundir import RunDir
from toys import TOY, toy_data, toy_plan

#: What is drawn or made again from the rest, whatever it holds.
EMPTY = {"lock"}
TIMES = {"seconds", "eval_seconds"}


def plan(**changes):
    return toy_plan(rounds=4, workers=1, C=1, checkpoint_s=0, algorithm="scaffold", **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run and one that was stopped after three of four rounds."""
    folder = tmp_path_factory.mktemp("runs")

    def stop(event):
        if event.round == 3:
            raise InterruptedError

    fedavg.run(plan(), folder / "finished")
    with pytest.raises(InterruptedError):
        fedavg.run(plan(), folder / "stopped", stop)
    return folder


def result(path):
    """What a run came to, without its times; the same for a run that is resumed."""
    summary = fedavg.resume(path, task=TOY, data=toy_data()).summary
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in RunDir(path).rows()]
    return summary.model_sha256, rows


def resumed(path):
    """The result and no refusal, or no result and why."""
    try:
        return result(path), ""
    except FedAvgError as error:
        return None, str(error)


def newest(path):
    return max((path / "checkpoints").iterdir())


@pytest.mark.parametrize("flips", [0.1, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["finished", "stopped"])
def test_a_flipped_bit_anywhere_is_found(runs, tmp_path, caplog, kind, flips):
    caplog.set_level(logging.WARNING)
    original = runs / kind
    shutil.copytree(original, tmp_path / "whole")
    expected = result(tmp_path / "whole")
    assert not [message for message in caplog.messages if "damaged" in message or "altered" in message]
    files = sorted(path for path in original.rglob("*") if path.is_file() and path.name not in EMPTY)
    random = Random(20161128)
    outcomes = {"same": 0, "refused": 0}
    for number in range(int(400 * flips)):
        path = files[number % len(files)]
        unused = path.parent.name == "checkpoints" and path != newest(original)
        run = tmp_path / f"{number}"
        shutil.copytree(original, run)
        data = bytearray(path.read_bytes())
        bit = random.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        (run / path.relative_to(original)).write_bytes(data)
        caplog.clear()
        found, refusal = resumed(run)
        where = f"bit {bit} of {path.relative_to(original)}"
        assert refusal or found == expected, where
        assert unused or path.name in refusal + caplog.text, where
        outcomes["refused" if refusal else "same"] += 1
        shutil.rmtree(run)
    assert outcomes["same"] > outcomes["refused"] > 0, outcomes


def test_a_damaged_row_is_not_read_as_if_the_run_had_ended_there(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"round": 2', b'"round": 3'))
    with pytest.raises(FedAvgError, match="metrics.jsonl is damaged: line 2 .* first 1 rows are whole; 'fedavg resume"):
        RunDir(tmp_path / "run").rows()
