"""Where data sets live on this machine. Knows folders and file names, not what is in the files."""

import os
from pathlib import Path

from fedavg.files import user_cache

#: Names the data directory where no option does.
VARIABLE = "FEDAVG_DATA"


def data_directory(asked: Path | None) -> Path:
    """The folder asked for, else the one that FEDAVG_DATA names, else the platform's cache folder."""
    if asked is not None:
        return asked.expanduser()
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else user_cache()


def cache_directory(data_dir: Path) -> Path:
    """Where files made from the data are kept: the data directory, or the platform's cache folder if that is read-only.

    A folder without any write permission counts as read-only for the superuser too.
    """
    folder = data_dir
    while not folder.exists():
        folder = folder.parent
    writable = os.access(folder, os.W_OK) and folder.stat().st_mode & 0o222
    return data_dir if writable else user_cache()
