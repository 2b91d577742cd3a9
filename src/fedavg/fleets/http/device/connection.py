"""How a device reaches its server."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fedavg.errors import FleetError
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.protocol.certs import client_context
from fedavg.fleets.http.protocol.keys import ClientKey


@dataclass(frozen=True)
class Connection:
    """TLS with the system's certificate authorities by default.

    `ca` is the authority of the server's certificate, `cert` and `key` are the device's own, for a server that asks for
    one (PEM files). `insecure` allows plain HTTP on this machine, to try things out. With `give_up_after_s` the
    device ends with an error if the server is unreachable for that long; otherwise it keeps trying.

    >>> from fedavg import Connection
    >>> Connection(give_up_after_s=60.0).insecure
    False
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False
    give_up_after_s: float | None = None

    def __post_init__(self) -> None:
        wait = self.give_up_after_s
        if wait is not None and not wait >= 0:
            raise FleetError(f"give_up_after_s (--give-up-after): got {wait}; expected seconds from 0")

    def link(self, url: str, key: ClientKey, pause: Callable[[float], None] | None = None) -> Link:
        """A link to a server; `pause` waits between tries, and raises when the device is to stop."""
        check_url(url, self.insecure)
        if not url.startswith("https:"):
            for name in ("ca", "cert", "key"):
                if getattr(self, name) is not None:
                    raise FleetError(f"{name} (--{name}) is for TLS; got {url}, expected https:")
            return Link(url, key, None, self.give_up_after_s, pause)
        return Link(url, key, client_context(self.ca, self.cert, self.key), self.give_up_after_s, pause)


def check_url(url: str, insecure: bool) -> None:
    """Refuse a malformed address, and plain HTTP to other machines."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FleetError(f"got '{url}'; expected the address of a server, as in https://server.example:8443")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise FleetError(f"got '{url}'; expected the address alone, as in {parts.scheme}://{parts.netloc}")
    loopback = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme == "http" and not (insecure and loopback):
        raise FleetError(
            f"got '{url}'; expected https. Plain HTTP is for loopback only, with --insecure (insecure=True in Python)"
        )
