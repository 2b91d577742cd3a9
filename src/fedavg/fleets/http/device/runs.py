"""The run that a device has taken up, and where the device stores the files of a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.protocol.messages import Enrolled, PlanAnswer, Taken

_FILE: Final = "taken.json"
_OVER: Final = "over.json"


@dataclass(frozen=True)
class TakenRun:
    """A run by its number and its plan, as the server told them."""

    run: int
    plan: str
    plan_digest: str

    @property
    def name(self) -> Taken:
        return Taken(self.run, self.plan_digest)


def told(answer: Enrolled | PlanAnswer) -> TakenRun | None:
    """The run that an answer is about; None if there is none."""
    if answer.run is None or answer.plan is None or answer.plan_digest is None:
        return None
    return TakenRun(answer.run, answer.plan, answer.plan_digest)


def taken_later(files: DeviceFiles) -> TakenRun | None:
    """The run that the device took up last, after the one that it enrolled for."""
    return files.read_as(_FILE, TakenRun)


def take_up(files: DeviceFiles, run: TakenRun | None) -> None:
    if run is None:
        files.remove(_FILE)
    else:
        files.write_json(_FILE, asdict(run))


def known_over(files: DeviceFiles) -> Taken | None:
    """The run that this device knows to be over, if it has taken up none since."""
    return files.read_as(_OVER, Taken)


def note_over(files: DeviceFiles, run: Taken | None) -> None:
    if run is None:
        files.remove(_OVER)
    else:
        files.write_json(_OVER, asdict(run))


def folder_of(directory: Path, run: int) -> Path:
    """The folder of a run's files, separate for each run; the first run uses the device's own folder."""
    return directory if run == 1 else directory / "runs" / str(run)
