"""The fleet's authority: it vouches for the keys of devices, offline or as a small separate process.

It belongs to the fleet's owner and must not run where the server runs: whoever holds its key can invent any number of
devices that real devices accept as peers. It learns nothing about any round.
"""

import json
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fedavg.errors import FleetError
from fedavg.files import write_atomically
from fedavg.fleets.http.protocol import keys
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.protocol.vouchers import PATH, Vouched, VouchRequest, proven, save_public, voucher_text
from fedavg.fleets.http.server.bodies import MESSAGE_BYTES, parse_body, read_body
from fedavg.fleets.http.server.limits import Buckets
from fedavg.fleets.http.server.listener import Listener
from fedavg.fleets.http.server.refusals import HTTP_PROBLEMS, Refusal, problem
from fedavg.programs.signals import Reload, heeding_signals, reload_certificates
from fedavg.secagg.identity import vouch

log = logging.getLogger("fedavg.authority")

KEY: Final = "authority.key"
PUBLIC: Final = "authority.pub"
TOKEN: Final = "token"
SIGNED: Final = "signed.jsonl"


@dataclass(frozen=True)
class AuthorityService:
    """How an authority serves: where, with which TLS, and for how many devices in all."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    devices: int
    #: Loads renewed certificates, if the service has any.
    reload: Reload | None = None


def create(directory: Path) -> None:
    """A new authority in its own folder; an existing one is never overwritten."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = keys.ClientKey.generate()
    key.save(directory / KEY)
    save_public(directory / PUBLIC, key.public)


class Authority:
    """Signs keys, and records each in `signed.jsonl` before it returns the voucher."""

    def __init__(self, directory: Path) -> None:
        self._key = keys.ClientKey.load(directory / KEY)
        self._log = directory / SIGNED
        self._lock = Lock()
        self._signed = set(_signed(self._log))

    @property
    def devices(self) -> int:
        return len(self._signed)

    def sign(self, device: bytes, name: str, most: int | None = None) -> bytes:
        """A voucher for a key; the same key always gets the same voucher. At most `most` keys are signed in all."""
        with self._lock:
            if device not in self._signed:
                if most is not None and len(self._signed) >= most:
                    raise Refusal("token-used", f"{most} devices are vouched for already; the owner allows no more")
                line = json.dumps({"key": device.hex(), "name": name}) + "\n"
                before = self._log.read_bytes() if self._log.exists() else b""
                write_atomically(self._log, before + line.encode(), private=True)
                self._signed.add(device)
        return vouch(self._key.private, device)

    def voucher(self, device: bytes, name: str) -> str:
        return voucher_text(self.sign(device, name))


def serve(directory: Path, service: AuthorityService, ready: Callable[[int], None] | None = None) -> None:
    """Answer devices that show the authority's token, until SIGTERM or Ctrl-C; SIGHUP reloads the certificate."""
    if service.tls is None and service.host not in ("127.0.0.1", "localhost", "::1"):
        raise FleetError(f"plain HTTP on {service.host}: expected TLS (--cert and --key); without it only loopback")
    authority = Authority(directory)
    app = Starlette(
        routes=[Route(PATH, _endpoint(authority, _token(directory), service.devices), methods=["POST"])],
        exception_handlers=HTTP_PROBLEMS,
    )
    app.router.redirect_slashes = False
    stop = Event()
    listener = Listener(app, service.host, service.port, service.tls)
    with heeding_signals(stop.set, lambda: reload_certificates(service.reload)):
        listener.start()
        try:
            if ready:
                ready(listener.port)
            stop.wait()
        finally:
            listener.stop()


def _endpoint(authority: Authority, token_hash: bytes, most: int) -> Callable[[Request], object]:
    pace = Buckets(rate=5, burst=50)

    async def answer(request: Request) -> Response:
        try:
            address = request.client.host if request.client else ""
            if pace.wait(address):
                raise Refusal("too-often", "too many requests; come back later", {"retry-after": "1"})
            asked = parse_body(VouchRequest, await read_body(request, MESSAGE_BYTES))
            if not keys.matches(asked.token, token_hash):
                raise Refusal("token-unknown", "this is not the authority's token; ask the fleet's owner")
            device = proven(asked)
            if device is None:
                raise Refusal("bad-signature", "the request does not show that its sender holds the key")
            voucher = authority.sign(device, address, most)
        except Refusal as refusal:
            log.warning("refused", extra={"reason": refusal.error})
            return problem(refusal)
        except ClientDisconnect:
            return Response(status_code=400)
        log.info("vouched", extra={"key": device.hex(), "devices": authority.devices})
        return Response(dump(Vouched(voucher_text(voucher).strip())), media_type="application/json")

    return answer


def _token(directory: Path) -> bytes:
    """The hash of the token that devices show; the token is created at the first start, in a private file."""
    path = directory / TOKEN
    if not path.exists():
        write_atomically(path, keys.new_token().encode(), private=True)
    return keys.token_hash(path.read_text().strip())


def _signed(path: Path) -> Iterable[bytes]:
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            yield bytes.fromhex(json.loads(line)["key"])
        except (ValueError, TypeError, KeyError):
            raise FleetError(f"{path}, line {number} cannot be read; expected the log of 'fedavg authority'") from None
