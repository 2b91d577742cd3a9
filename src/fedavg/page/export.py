"""The page as one file, to be sent or kept: it needs neither this package nor a network."""

from pathlib import Path
from typing import Any, Final

from fedavg.errors import RunDirError
from fedavg.files import write_atomically
from fedavg.page.answers import NotThere, Shown
from fedavg.page.library import Library
from fedavg.page.site import whole_page
from fedavg.page.views import evenly
from fedavg.study.axes import AXES

#: Rounds of each run that the file holds one by one; of longer runs so many, evenly spread.
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
    """All that the page can ask for, by what it asks."""
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
        except NotThere:  # what is not there now will not be in the file, and the page says so
            continue
    return found
