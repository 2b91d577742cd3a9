"""The small files of a device: mode 0600 in a folder of mode 0700, written atomically and checked when read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from types import GenericAlias
from typing import Any, Final, TypeVar, get_type_hints

from fedavg.errors import FleetError
from fedavg.files import write_atomically

T = TypeVar("T")

#: What a user can do about a damaged file. A file that is not listed can be deleted: it is created again.
_REMEDIES: Final = {
    "enrolled.json": "restore it, or remove the whole folder and enrol as a new device",
    "opened.json": "it keeps servers from opening two sums of one round: restore it, or remove the whole folder and "
    "enrol as a new device",
    "kept.update": "remove it: the device then makes another update, which its privacy budget is charged for again",
    "voucher": "have the authority sign device.pub again",
}  # fmt: skip


class DeviceFiles:
    """The files of one device, in its own folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> None:
        """Create the folder, closed to other users."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.name == "posix" and self._directory.stat().st_mode & 0o077:
                self._directory.chmod(0o700)
        except OSError as error:
            raise FleetError(
                f"{self._directory} cannot be this device's folder: {error.strerror}; expected for --state one that "
                "belongs to this user"
            ) from None

    def path(self, name: str) -> Path:
        return self._directory / name

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def read(self, name: str) -> bytes:
        try:
            return self.path(name).read_bytes()
        except OSError as error:
            raise FleetError(f"cannot read {self.path(name)}: {error.strerror}; {_remedy(name)}") from None

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self.path(name), data, private=True)

    def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def read_as(self, name: str, kind: type[T]) -> T | None:
        """The dataclass that `write_json` wrote; None if there is no such file."""
        if not self.exists(name):
            return None
        try:
            content = json.loads(self.read(name))
            hints = get_type_hints(kind)
            added = {spec.name: spec.default for spec in fields(kind) if spec.default is not MISSING}  # type: ignore[arg-type]
            content = added | content  # a file of an earlier version lacks some of them
            if set(content) != set(hints):
                raise ValueError(f"it has {sorted(content)}, not {sorted(hints)}")
            if wrong := [key for key, hint in hints.items() if not _is(content[key], hint)]:
                raise ValueError(f"{wrong[0]} is not a {hints[wrong[0]]}")
            return kind(**content)
        except (ValueError, TypeError, RecursionError) as error:
            raise self.damaged(name, str(error)) from None

    def damaged(self, name: str, why: str) -> FleetError:
        return FleetError(f"{self.path(name)} is damaged: {why[:200]}; {_remedy(name)}")

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        self.write(name, json.dumps(content).encode())


@contextmanager
def private_umask() -> Iterator[None]:
    """Files that this process creates meanwhile are closed to other users."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _remedy(name: str) -> str:
    return _REMEDIES.get(name, "remove it: what it held is made again")


def _is(value: object, hint: Any) -> bool:
    if isinstance(hint, GenericAlias):  # list[float]
        (inner,) = hint.__args__
        return isinstance(value, list) and all(_is(each, inner) for each in value)
    return isinstance(value, hint) or (hint is float and isinstance(value, int))
