"""What a study has measured: a row for each setting, kept in a file as soon as it is there and never measured twice."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedavg.files import write_atomically

Row = dict[str, Any]


class Study:
    def __init__(self, out: Path | None) -> None:
        self._out = out
        self._rows: list[Row] = json.loads(out.read_text()) if out and out.exists() else []

    def row(self, measure: Callable[..., Row], **setting: Any) -> Row:
        """The setting and what was measured with it."""
        for row in self._rows:
            if row.items() >= setting.items():
                return row
        self._rows.append(setting | measure(**setting))
        if self._out:
            write_atomically(self._out, ("[\n" + ",\n".join(map(json.dumps, self._rows)) + "\n]\n").encode())
        return self._rows[-1]


def study_options(script: str | None) -> argparse.ArgumentParser:
    """For a script with this docstring; --out names the study's file."""
    parser = argparse.ArgumentParser(description=script, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Where rows are kept; what it has is not run again.")
    return parser
