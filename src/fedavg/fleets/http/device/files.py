"""The small files of a device, private and whole."""

import json
from pathlib import Path
from typing import Any

from fedavg.errors import FleetError
from fedavg.files import write_atomically


class DeviceFiles:
    """The small files of a device."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def exists(self, name: str) -> bool:
        return (self._directory / name).exists()

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self._directory / name, data, private=True)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def read_json(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads(self.read(name))
        except FileNotFoundError:
            return None
        except ValueError:
            raise FleetError(f"{self._directory / name} can not be read; expected what 'fedavg join' wrote") from None
        assert isinstance(content, dict)
        return content

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        self.write(name, json.dumps(content).encode())
