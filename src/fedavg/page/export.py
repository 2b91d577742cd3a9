"""The page as one file to send or keep: it needs neither this package nor a network."""

from pathlib import Path
from typing import Any, Final

from fedavg.errors import RunDirError
from fedavg.files import write_atomically
from fedavg.page.answers import NotThere, Shown
from fedavg.page.library import Library
from fedavg.page.site import whole_page
from fedavg.page.views import evenly
from fedavg.study.axes import AXES

#: The most rounds of each run that the file holds in detail; of longer runs, this many evenly spread ones.
ROUNDS: Final = 200


def export(root: Path, file: Path) -> int:
    """Write the runs below a folder, or one run, as one HTML file; returns how many runs there are in it."""
    library = Library(root)
    library.read_all()
    answers = all_answers(Shown(library))
    runs = len(answers["index"]["runs"])
    if not runs:
        raise RunDirError(f"there is no run in '{root}'; expected a run directory, or a folder of runs")
    write_atomically(file, whole_page(answers).encode())
    return runs


def all_answers(shown: Shown) -> dict[str, Any]:
    """All answers that the page can ask for, by request."""
    index = shown.answer("index")
    ids = [run["id"] for run in index["runs"]]
    chosen = "".join(f"&run={id}" for id in ids)
    asked = {f"curves?x={x}&y={y}": f"curves?x={x}&y={y}{chosen}" for x in AXES for y in index["columns"]}
    asked |= {path: path for id in ids for path in (f"run/{id}/clients", f"run/{id}/partition", f"run/{id}/world")}
    kept = {run["id"]: evenly(range(1, run["rounds"] + 1), ROUNDS) for run in index["runs"]}
    asked |= {path: path for id in ids for path in (f"run/{id}/round/{number}" for number in kept[id])}
    found = {"index": index | {"kept": kept, "root": Path(index["root"]).name}}
    for name, path in asked.items():
        try:
            found[name] = shown.answer(path)
        except NotThere:  # it is left out of the file, and the page says so
            continue
    return found
