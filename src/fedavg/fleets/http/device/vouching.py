"""How a device gets its identity in signed sessions: the authority's voucher for its own key."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fedavg.errors import FleetError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.vouchers import PATH, Vouched, parse_voucher, request_for, save_public, voucher_text
from fedavg.secagg.identity import Signing, vouched

log = logging.getLogger("fedavg.device")

VOUCHER: Final = "voucher"
PUBLIC: Final = "device.pub"


def own_identity(
    files: DeviceFiles, key: ClientKey, authority: bytes, ask: Callable[[ClientKey], bytes] | None
) -> Signing:
    """The key with the authority's voucher for it: the kept voucher, or a new one if `ask` is given."""
    save_public(files.path(PUBLIC), key.public)
    if not files.exists(VOUCHER) and ask:
        files.write(VOUCHER, voucher_text(ask(key)).encode())
        log.info("vouched for", extra={"key": key.public.hex()})
    if not files.exists(VOUCHER):
        raise FleetError(_how_to(files.path(PUBLIC), files.path(VOUCHER)))
    voucher = parse_voucher(files.read(VOUCHER))
    if voucher is None or not vouched(authority, key.public, voucher):
        raise files.damaged(VOUCHER, "it is not the pinned authority's signature on this device's key")
    return Signing(key.private, voucher, authority)


def asking(url: str, token: str, make_link: Callable[[str, ClientKey], Link]) -> Callable[[ClientKey], bytes]:
    """Asks an authority that runs as a separate process."""

    def ask(key: ClientKey) -> bytes:
        link = make_link(url, key)
        try:
            answer = link.ask(Vouched, PATH, request_for(key, token))
        finally:
            link.close()
        voucher = parse_voucher(answer.voucher)
        if voucher is None:
            raise FleetError(f"{url} answered no voucher; is it the fleet's authority?")
        return voucher

    return ask


def _how_to(public: Path, voucher: Path) -> str:
    return (
        f"nobody has vouched for this device's key yet; have the fleet's authority sign {public} "
        f"('fedavg authority sign') and put the result at {voucher}, or give --authority-url"
    )
