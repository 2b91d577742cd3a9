"""What clients keep between rounds: residuals of a codec, control variates of an algorithm.

In deployment it lies on the device; in simulation under the run directory, one file per client and version, so that
half a million clients cost nothing until they are picked. A version is named by the round that made it: a run that goes
back to an earlier checkpoint finds the versions of that time.
"""

from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedavg.errors import RunDirError
from fedavg.files import write_atomically

#: Clients whose files share a folder.
FOLDER: Final = 256


class ClientStates:
    """Small named tensors by client and round, under one directory; workers may use it side by side."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def load(self, k: int, before: int) -> dict[str, Tensor]:
        """What client k kept in its last round before this one; empty if there was none."""
        earlier = [round for round in self._versions(k) if round < before]
        if not earlier:
            return {}
        path = self._path(k, max(earlier))
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            raise RunDirError(f"{path} can not be read: {error}; expected what client {k} kept") from None

    def save(self, k: int, round: int, state: dict[str, Tensor]) -> None:
        """Keep a version, and drop those that no checkpoint can need any more."""
        path = self._path(k, round)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(state), durable=False)
        settled = self._settled()
        for old in sorted(version for version in self._versions(k) if version <= settled)[:-1]:
            self.discard(k, old)

    def discard(self, k: int, round: int) -> None:
        """Forget a version: its round did not count."""
        self._path(k, round).unlink(missing_ok=True)

    def settle(self, round: int) -> None:
        """The run can no longer go back beyond this round."""
        self._root.mkdir(parents=True, exist_ok=True)
        write_atomically(self._root / "settled", str(round).encode())

    def _settled(self) -> int:
        path = self._root / "settled"
        return int(path.read_text()) if path.exists() else 0

    def _path(self, k: int, round: int) -> Path:
        return self._root / str(k // FOLDER) / f"{k}.{round}.safetensors"

    def _versions(self, k: int) -> list[int]:
        return [int(path.name.split(".")[1]) for path in self._path(k, 0).parent.glob(f"{k}.*.safetensors")]
