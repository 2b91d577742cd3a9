"""Finds the files of a data set in the data directory, and fetches those that are missing or damaged.

A file is used only if it has the SHA-256 of the registry. A download goes to `NAME.partial`, is resumed where it broke
off, and gets its name only when it is whole and checked. Knows URLs and bytes, not what is in a file.
"""

import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedavg.data.dataset import Dataset, RemoteFile, StoredFile, as_it_comes
from fedavg.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress

_CHUNK: Final = 1 << 18
_TIMEOUT_S: Final = 30
#: A broken connection is retried this many times before the next mirror is tried.
_ATTEMPTS: Final = 3
#: What a broken network, a bad server or an unplugged cable raise.
_NETWORK: Final = (OSError, http.client.HTTPException)

#: Called with (file name, bytes so far, bytes in all or 0 if unknown) during a download.
DownloadReport = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Obtained:
    """A file that is in its place, and whether it had to be fetched."""

    path: Path
    form: StoredFile
    fetched: bool


def obtain_all(dataset: Dataset, folder: Path) -> list[Obtained]:
    """Every file that the data set needs, in place and checked; downloads what is missing, with progress on stderr."""
    unpacked = _contents(dataset, folder)
    if unpacked:
        return unpacked
    bar = _bar()
    report = _reporter(bar)
    try:
        if dataset.one_is_enough:
            return [_obtain_one_of(dataset.name, dataset.files, folder, report)]
        return [_obtain(dataset.name, file, folder, report) for file in dataset.files]
    finally:
        if bar.live.is_started:
            bar.stop()


def locate(file: RemoteFile, folder: Path) -> tuple[Path, StoredFile] | None:
    """The file in one of its forms, checked; None where there is none, an error where it is damaged."""
    for form in file.forms:
        path = folder / form.path
        if path.is_file():
            _check(path, form)
            return path, form
    return None


def present(file: RemoteFile, folder: Path) -> bool:
    """Whether the file is there in any form; not whether it is sound."""
    return any((folder / form.path).is_file() for form in file.forms)


def complete(dataset: Dataset, folder: Path) -> bool:
    """Whether every file that is needed is there; not whether it is sound."""
    unpacked = [present(file, folder) for file in dataset.contents]
    here = [present(file, folder) for file in dataset.files]
    return bool(unpacked and all(unpacked)) or bool(here and (any(here) if dataset.one_is_enough else all(here)))


def _contents(dataset: Dataset, folder: Path) -> list[Obtained]:
    """The contents of the archives, if all are there and sound; damaged ones are removed, to be unpacked again."""
    if not dataset.contents or not all(present(file, folder) for file in dataset.contents):
        return []
    found = [_locate_or_remove(file, folder) for file in dataset.contents]
    return [] if None in found else [Obtained(*pair, fetched=False) for pair in found if pair is not None]


def _obtain_one_of(name: str, files: Sequence[RemoteFile], folder: Path, report: DownloadReport) -> Obtained:
    """The best edition that is here, else the best that can be fetched."""
    here = [file for file in files if present(file, folder)]
    problems = []
    for file in here[:1] or files:
        try:
            return _obtain(name, file, folder, report)
        except DataError as error:
            problems.append(str(error))
    raise DataError("\nOne of its editions is enough. ".join(problems))


def _obtain(name: str, file: RemoteFile, folder: Path, report: DownloadReport) -> Obtained:
    found = _locate_or_remove(file, folder)
    if found is not None:
        return Obtained(*found, fetched=False)
    return Obtained(_fetch(name, file, folder, report), file.forms[0], fetched=True)


def _locate_or_remove(file: RemoteFile, folder: Path) -> tuple[Path, StoredFile] | None:
    try:
        return locate(file, folder)
    except DataError as error:
        _remove_damaged(file, folder, error)
        return None


def _check(path: Path, form: StoredFile) -> None:
    got = sha256(path)
    if got != form.sha256:
        raise DataError(
            f"{path} is damaged or another version: SHA-256 is {got} ({path.stat().st_size:,} bytes), expected "
            f"{form.sha256} ({form.bytes:,} bytes). Delete it, or let `fedavg data get` fetch it again."
        )


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_damaged(file: RemoteFile, folder: Path, why: DataError) -> None:
    path = next(folder / form.path for form in file.forms if (folder / form.path).is_file())
    try:
        path.unlink()
    except OSError as error:
        raise DataError(f"{why} It cannot be removed from here: {error.strerror}.") from error
    print(f"{why}\nremoved {path}", file=sys.stderr)


def _fetch(name: str, file: RemoteFile, folder: Path, report: DownloadReport) -> Path:
    form, problems = file.forms[0], []
    target = folder / form.path
    for url in file.urls:
        try:
            return _fetch_from(url, file, target, report)
        except (DataError, *_NETWORK) as error:
            problems.append(f"{url}: {error}")
    raise DataError(_how_to_help(name, file, folder, problems))


def _fetch_from(url: str, file: RemoteFile, target: Path, report: DownloadReport) -> Path:
    """One mirror: resumed where it broke off, converted, checked, put in place."""
    partial = target.with_name(target.name + ".partial")
    resumed = partial.exists()
    _download(url, partial, report)
    try:
        return _put_in_place(partial, file, target)
    except DataError:
        partial.unlink(missing_ok=True)
        if not resumed:
            raise
    # The old beginning may have come from another version of the file: once more from the start.
    _download(url, partial, report)
    try:
        return _put_in_place(partial, file, target)
    finally:
        partial.unlink(missing_ok=True)


def _put_in_place(partial: Path, file: RemoteFile, target: Path) -> Path:
    ready = partial
    if file.convert is not as_it_comes:
        ready = target.with_name(target.name + ".converted")
        ready.write_bytes(file.convert(partial.read_bytes()))
    try:
        _check(ready, file.forms[0])
        ready.replace(target)
    except DataError:
        ready.unlink()
        raise
    partial.unlink(missing_ok=True)
    return target


def _download(url: str, partial: Path, report: DownloadReport) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        before = _size(partial)
        try:
            _download_rest(url, partial, report)
        except _NETWORK:
            # A server that gave nothing will give nothing the next time.
            if attempt == _ATTEMPTS or _size(partial) == before:
                raise
        else:
            return


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download_rest(url: str, partial: Path, report: DownloadReport) -> None:
    start = _size(partial)
    with _open(url, start) as response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else 0
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("ab" if start else "wb") as sink:
            while chunk := response.read(_CHUNK):
                sink.write(chunk)
                report(partial.name.removesuffix(".partial"), sink.tell(), total)
            got = sink.tell()
    if got < total:
        raise ConnectionError(f"the connection broke off after {got:,} of {total:,} bytes")


def _open(url: str, start: int) -> http.client.HTTPResponse:
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url} is not an http(s) address. Fix the registry.")
    request = urllib.request.Request(url, headers={"User-Agent": "fedavg"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        # A fresh opener: the one that urlopen keeps would remember the proxies of the first call forever.
        response: http.client.HTTPResponse = urllib.request.build_opener().open(request, timeout=_TIMEOUT_S)
        return response
    except urllib.error.HTTPError as error:
        # Nothing is left to send (416): what we have is whole, or rubbish. Take it all again and let the SHA-256 say.
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        return _open(url, 0)


def _how_to_help(name: str, file: RemoteFile, folder: Path, problems: list[str]) -> str:
    form = file.forms[0]
    tried = "It could not be fetched:\n  " + "\n  ".join(problems) if problems else "It cannot be downloaded."
    others = "".join(f"\n  or  {folder / other.path}  (SHA-256 {other.sha256})" for other in file.forms[1:])
    return (
        f"data set {name} needs a file that is not there. {tried}\n"
        f"Put it, {form.bytes / 1e6:.1f} MB, at\n      {folder / form.path}  (SHA-256 {form.sha256}){others}\n"
        "or name the folder that has it with --data-dir or FEDAVG_DATA."
    )


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _reporter(bar: "Progress") -> DownloadReport:
    tasks: dict[str, int] = {}

    def report(name: str, done: int, total: int) -> None:
        bar.start()  # not before the first byte: where nothing is fetched, nothing is shown
        if name not in tasks:
            tasks[name] = bar.add_task(name)
        bar.update(tasks[name], completed=done, total=total or None)  # type: ignore[arg-type]

    return report
