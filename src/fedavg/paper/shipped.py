"""Which records `fedavg paper` reads: a clone's own, or outside of one those that came with the package."""

from pathlib import Path
from typing import Final

from fedavg.campaign.records import Records

IN_CLONE: Final = Path("docs/results/records")
#: What is measured outside a clone.
ELSEWHERE: Final = Path("runs/paper-records")


def open_records(named: Path | None = None) -> Records:
    """`named`: a folder that the user chose; it is the only one then."""
    if named or IN_CLONE.is_dir():
        return Records(named or IN_CLONE)
    return Records(ELSEWHERE, beside=shipped())


def shipped() -> Path | None:
    """In a wheel the records are beside this file; an editable install has them in its clone."""
    folders = (Path(__file__).parent / "measured", Path(__file__).parents[3] / IN_CLONE)
    return next((folder for folder in folders if folder.is_dir()), None)
