"""The fleet's authority from the command line: make it, let it vouch for devices, run it as a process."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedavg.cli.asking import check_url, needs_server_extra, read_token
from fedavg.cli.operate import address
from fedavg.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedavg.fleets.http.device.files import DeviceFiles
    from fedavg.fleets.http.protocol.keys import ClientKey
    from fedavg.secagg import Signing

log = logging.getLogger("fedavg.fleet")

_folder = click.Path(path_type=Path, file_okay=False)
_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def authority() -> None:
    """Vouch for the keys of a fleet's devices, so that no server can invent peers in secure aggregation.

    \b
    fedavg authority create authority                     on a machine that is not the server
    fedavg authority sign authority device.pub > voucher  offline, device by device; or
    fedavg authority serve authority --devices 100 --listen 0.0.0.0:8444 --cert cert.pem --key key.pem
    """


@authority.command()
@click.argument("directory", type=_folder)
def create(directory: Path) -> None:
    """Make a new authority in DIRECTORY: its private key, and authority.pub for every device and the server."""
    needs_server_extra()
    from fedavg.programs import authority as program

    program.create(directory)
    click.echo(f"private: {directory / program.KEY}; keep it off the server")
    click.echo(f"for 'fedavg join' and 'fedavg serve': --authority {directory / program.PUBLIC}")


@authority.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("device", type=_file)
@click.option("--name", default="", help="Whose device it is, for the log of what was signed.")
def sign(directory: Path, device: Path, name: str) -> None:
    """Vouch for the key in the file DEVICE (a device's device.pub); the voucher is printed."""
    needs_server_extra()
    from fedavg.fleets.http.protocol.vouchers import load_public
    from fedavg.programs.authority import Authority

    click.echo(Authority(directory).voucher(load_public(device), name), nl=False)


@authority.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--devices", type=click.IntRange(1), required=True, help="How many keys it vouches for in all.")
@click.option("--listen", default="127.0.0.1:8444", show_default=True, metavar="HOST:PORT", help="Where devices ask.")
@click.option("--cert", type=_file, help="Its certificate, PEM.")
@click.option("--key", type=_file, help="The certificate's private key, PEM.")
def serve(directory: Path, devices: int, listen: str, cert: Path | None, key: Path | None) -> None:
    """Vouch for devices that show the token in DIRECTORY/token, as a separate process."""
    needs_server_extra()
    from fedavg.fleets.http.protocol.certs import ServerCertificate
    from fedavg.fleets.http.server.logs import log_to_stderr, told_in_the_log
    from fedavg.programs import authority as program

    if (cert is None) != (key is None):
        raise PlanError("--cert and --key belong together; got one of them")
    log_to_stderr()
    host, port = address(listen, "--listen")
    certificate = ServerCertificate(cert, key) if cert and key else None

    def ready(port: int) -> None:
        scheme = "https" if certificate else "http"
        where = {"url": f"{scheme}://{host}:{port}", "token": f"in {directory / program.TOKEN}"}
        log.info("serving", extra=where)

    with told_in_the_log():
        shown = (certificate.context, certificate.reload) if certificate else (None, None)
        program.serve(directory, program.AuthorityService(host, port, shown[0], devices, shown[1]), ready)


def identity_source(options: dict[str, Any]) -> "Callable[[DeviceFiles, ClientKey], Signing] | None":
    """How the device comes by its identity in signed sessions; None if it pins no authority."""
    from fedavg.fleets.http.device.link import Link
    from fedavg.fleets.http.device.vouching import asking, own_identity
    from fedavg.fleets.http.protocol.certs import client_context
    from fedavg.fleets.http.protocol.vouchers import load_public

    url, token_file = options["authority_url"], options["authority_token_file"]
    if options["authority"] is None and (url or token_file or options["authority_ca"]):
        raise PlanError("--authority-url, --authority-token-file and --authority-ca need --authority, the key to pin")
    if (url is None) != (token_file is None):
        raise PlanError("--authority-url and --authority-token-file belong together; got one of them")
    if options["authority_ca"] and not (url and url.startswith("https:")):
        raise PlanError(f"--authority-ca is for TLS; got --authority-url {url or 'nowhere'}, expected https:")
    if options["authority"] is None:
        return None
    ask = None
    if url:
        check_url(url, options["insecure"])
        tls = client_context(options["authority_ca"]) if url.startswith("https:") else None
        ask = asking(url, read_token(token_file), lambda url, key: Link(url, key, tls, 30.0))
    authority = load_public(options["authority"])
    return lambda files, key: own_identity(files, key, authority, ask)
