"""What docs/architecture.md counts is counted here: on real stacks."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

import fedavg
from fedavg.cli import cli
from fedavg.engine.native_epoch import built

PACKAGE = Path(fedavg.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "architecture.md"
#: The last function of our own in the server's process, and in a worker's.
LAST = {"fleets/pool.py": "run", "engine/native_epoch.py": "__call__"}


def own_calls(frame: FrameType | None) -> list[tuple[str, str]]:
    """File and function of each frame of the package, outermost first; a forked worker's begin with its life."""
    found: list[tuple[str, str]] = []
    while frame and (not found or found[-1] != ("fleets/processes.py", "live")):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def way_to_the_gradient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls from `fedavg run` to the native code, through the pipe to a worker."""
    plan = folder / "plan.toml"
    plan.write_text('task = "toys:TOY"\ndata = "toys:toy_data"\nrounds = 1\nworkers = 1\n')
    monkeypatch.setattr(sys, "path", [*sys.path])

    def note(frame: FrameType, event: str, _: object) -> None:  # forked workers inherit it
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name == LAST.get("/".join(path.parts[-2:])):
            calls = own_calls(frame)
            if ("fleets/simulated.py", "train") in calls or calls[0][1] == "live":
                (folder / f"{path.stem}.json").write_text(json.dumps(calls))

    sys.setprofile(note)
    try:
        cli(["run", str(plan), "--run-dir", str(folder / "run"), "--no-plot", "--quiet"], standalone_mode=False)
    finally:
        sys.setprofile(None)
    return [
        tuple(call) for name in ("pool", "native_epoch") for call in json.loads((folder / f"{name}.json").read_text())
    ]


@pytest.mark.skipif(sys.platform != "linux" or built() is None, reason="the page counts forked workers and own kernels")
def test_the_way_to_the_gradient_is_as_long_as_the_page_says(tmp_path, monkeypatch):
    calls = way_to_the_gradient(tmp_path, monkeypatch)
    files = [file for file, _ in calls]
    returns = sum(a != b and b in files[:i] for i, (a, b) in enumerate(pairwise(files)))
    told = re.search(r"stand (\d+) calls in\s(\d+) files", PAGE.read_text())
    assert told, "the page counts them"
    assert (len(calls), len(set(files)), returns) == (int(told[1]), int(told[2]), 0), "\n".join(map(str, calls))
