"""What docs/architecture.md counts is counted here: on real stacks."""

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

import fedavg
from fedavg.cli import cli
from fedavg.engine.native_epoch import built

PACKAGE = Path(fedavg.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "architecture.md"
#: Where jobs enter the pipe to a worker, where its native code begins, and a function of our own on each stack.
ENDS = {
    "multiprocessing/connection.py": ("send", ("fleets/simulated.py", "train")),
    "engine/native_epoch.py": ("__call__", ("fleets/processes.py", "live")),
}


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
        function, through = ENDS.get("/".join(path.parts[-2:]), ("", None))
        if event == "call" and frame.f_code.co_name == function and through in (calls := own_calls(frame)):
            (folder / f"{path.stem}.json").write_text(json.dumps(calls))

    sys.setprofile(note)
    try:
        cli(["run", str(plan), "--run-dir", str(folder / "run"), "--no-plot", "--quiet"], standalone_mode=False)
    finally:
        sys.setprofile(None)
    return [
        tuple(call)
        for name in ("connection", "native_epoch")
        for call in json.loads((folder / f"{name}.json").read_text())
    ]


@pytest.mark.skipif(sys.platform != "linux" or built() is None, reason="the page counts forked workers and own kernels")
def test_the_way_to_the_gradient_is_as_long_as_the_page_says(tmp_path, monkeypatch):
    calls = way_to_the_gradient(tmp_path, monkeypatch)
    files = [file for file, _ in calls]
    returns = sum(a != b and b in files[:i] for i, (a, b) in enumerate(pairwise(files)))
    told = re.search(r"stand (\d+) calls in\s(\d+) files", PAGE.read_text())
    assert told, "the page counts them"
    assert (len(calls), len(set(files)), returns) == (int(told[1]), int(told[2]), 0), "\n".join(map(str, calls))


def types_in(module: ast.Module) -> Iterator[str]:
    """The names of its classes, and of what it calls a type at its top: `Grid = Mapping[str, float]`."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", target.id):
                    yield target.id


def test_one_name_of_a_class_means_one_thing():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in types_in(ast.parse(path.read_text())):
            places[name.removeprefix("_")].append(path.relative_to(PACKAGE).as_posix())
    assert len(places) > 500
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


#: Modules that put the parts of a plan together: they ask parts what they declare, never for their class.
ASKING = (
    "setup.py",
    "draft.py",
    "checks.py",
    "client_path.py",
    "reduction.py",
    "server.py",
    "cohorts.py",
    "privacy/*.py",
)


def test_what_puts_parts_together_asks_no_part_for_its_class():
    parts = {
        name
        for folder in ("algorithms", "attacks", "codecs", "optimizers", "robust", "samplers", "stages", "world")
        for path in (PACKAGE / folder).glob("*.py")
        for name in types_in(ast.parse(path.read_text()))
    }
    asked = [
        f"{path.name}: {ast.unparse(call)}"
        for pattern in ASKING
        for path in PACKAGE.glob(pattern)
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("isinstance", "issubclass")
        if parts & {name.id for name in ast.walk(call.args[1]) if isinstance(name, ast.Name)}
    ]
    assert len(parts) > 60
    assert asked == []


def test_no_module_is_longer_than_400_lines():
    lengths = {path.relative_to(PACKAGE).as_posix(): path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
