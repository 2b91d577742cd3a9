"""Which records `fedavg paper` reads: those of the clone, or, outside a clone, those shipped with the package."""

from pathlib import Path
from typing import Final

from fedavg.campaign.records import Records

IN_CLONE: Final = Path("docs/results/records")
#: Where records of measurements outside a clone go.
ELSEWHERE: Final = Path("runs/paper-records")


def open_records(named: Path | None = None) -> Records:
    """`named`: a folder that the user chose; then only that is read."""
    if named or IN_CLONE.is_dir():
        return Records(named or IN_CLONE)
    return Records(ELSEWHERE, beside=shipped())


def shipped() -> Path | None:
    """In a wheel the records are beside this file; an editable install has them in its clone."""
    folders = (Path(__file__).parent / "measured", Path(__file__).parents[3] / IN_CLONE)
    return next((folder for folder in folders if folder.is_dir()), None)
