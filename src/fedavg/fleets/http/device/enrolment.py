"""Who a device is to its server: asked for once, then read from the device's files."""

import logging
from base64 import b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fedavg.errors import FleetError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.device.runs import TakenRun, note_over, take_up, taken_later, told
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import PROTOCOL, Enrolled, EnrolRequest

log = logging.getLogger("fedavg.device")

_FILE: Final = "enrolled.json"


@dataclass(frozen=True)
class Enrolment:
    """What the device was told when it enrolled."""

    server: str
    client: int
    #: The plan of the server's run 1; empty if the server had another run, or none.
    plan: str
    plan_digest: str


@dataclass(frozen=True)
class Application:
    """What a device says about itself when it enrols; `client` is the number that it asks for."""

    token: str | None
    examples: int
    tasks: tuple[str, ...]
    name: str
    client: int | None


def enrolled(url: str, link: Link, files: DeviceFiles, application: Application) -> Enrolment:
    """Who this device is; asks the server the first time."""
    identity = files.read_as(_FILE, Enrolment)
    if identity is not None:
        if identity.server != url:
            folder = files.path(_FILE).parent
            raise FleetError(f"{folder} belongs to {identity.server}, not to {url}; use another --state directory")
        return identity
    if application.token is None:
        raise FleetError(
            "this device is not enrolled yet; expected a join token of the server's operator: --token-file FILE, or "
            "token=... in Python"
        )
    request = EnrolRequest(
        token=application.token,
        key=b64encode(link.signer.key.public).decode(),
        examples=application.examples,
        name=application.name,
        client=application.client,
        tasks=list(application.tasks),
        protocol=PROTOCOL,
    )
    answer = link.ask(Enrolled, "/v1/enrol", request)
    run = told(answer)
    first = run if run is not None and run.run == 1 else None
    identity = Enrolment(url, answer.client, first.plan if first else "", first.plan_digest if first else "")
    take_up(files, None if first else run)
    files.write_json(_FILE, asdict(identity))
    log.info("enrolled", extra={"client": identity.client})
    return identity


def is_enrolled(files: DeviceFiles) -> bool:
    return files.exists(_FILE)


def forget(files: DeviceFiles) -> None:
    """The next time, the device enrols again."""
    files.remove(_FILE)
    take_up(files, None)
    note_over(files, None)


def taken(files: DeviceFiles, identity: Enrolment) -> TakenRun | None:
    """The run that the device took up last; None if there is none."""
    later = taken_later(files)
    first = TakenRun(1, identity.plan, identity.plan_digest) if identity.plan else None
    return later or first


def own_key(path: Path) -> ClientKey:
    """The device's key; created the first time."""
    if path.exists():
        return ClientKey.load(path)
    key = ClientKey.generate()
    key.save(path)
    return key
