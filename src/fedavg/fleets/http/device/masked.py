"""A device's side of rounds under secure aggregation: it answers the messages of a session, one by one.

The state of the session is on the disk before an answer is sent, so that a device that is started again goes on in the
same session, and keeps refusing what it has refused. The terms follow from the device's own plan, never from the
server's word.

A device opens one sum per round number, whatever the attempt: two sums over nearly the same clients would show the
update of the one in whom they differ. Which round it has opened is on the disk before its shares leave it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fedavg.client import Message
from fedavg.errors import FedAvgError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.device.policy import Declined
from fedavg.fleets.http.device.reports import report
from fedavg.fleets.http.protocol.messages import MaskAnswer, WorkOffer, dump, parse
from fedavg.setup import Setup

if TYPE_CHECKING:
    from fedavg.secagg import ClientSession, Identity, Terms

log = logging.getLogger("fedavg.device")

_OFFER: Final = "offer.json"
_SESSION: Final = "session.json"
OPENED: Final = "opened.json"


@dataclass(frozen=True)
class Opened:
    """The last round, and the session in it, whose sum this device has helped to open."""

    round: int
    session: str


class MaskedRounds:
    """The session that this device is in, if any. `train` gives the update of an offer, the same each time.

    In signed sessions `identity` signs for this device; no sum of fewer than `least` clients is opened.
    """

    def __init__(
        self,
        setup: Setup,
        k: int,
        link: Link,
        files: DeviceFiles,
        train: Callable[[WorkOffer], Message],
        identity: "Identity | None",
        least: int,
    ) -> None:
        self._setup, self._k, self._link, self._files, self._train = setup, k, link, files, train
        self._identity, self._least = identity, least

    def check(self, offer: WorkOffer) -> None:
        """Refuses an offer of a round that this device has opened: also one that names the very session again."""
        self._check_unopened(offer.round)

    def begin(self, offer: WorkOffer) -> None:
        """Take part in the session of an offer: send the first message."""
        from fedavg.secagg import ClientSession

        with self._leaving(offer.round, offer.attempt):
            known = self._known_offer()
            if known is None or _bare(known) != _bare(offer):
                session = ClientSession(self._terms(offer), self._k, self._identity, self._least)
                self._files.write(_SESSION, session.to_bytes())
                self._files.write(_OFFER, dump(replace(offer, counted=None)))
            self._link.upload(_path(offer), self._session().advertise().to_bytes())

    def step(self, answer: MaskAnswer) -> None:
        """Fetch the message that waits, and answer it."""
        from fedavg.secagg import answer as reply_to
        from fedavg.secagg import parse as parse_message
        from fedavg.secagg.messages import UnmaskRequest

        with self._leaving(answer.round, answer.attempt):
            offer = self._known_offer()
            if offer is None or (offer.session, offer.round) != (answer.session, answer.round):
                raise Declined("session-left", "this device has no part in the session; it may have lost its files")
            session = self._session()
            message = parse_message(self._link.fetch(_path(offer)))
            if isinstance(message, UnmaskRequest):
                self._check_unopened(offer.round, going_on=answer.session)
            try:
                reply = reply_to(session, message, lambda: self._ring(offer, session)).to_bytes()
            finally:
                self._files.write(_SESSION, session.to_bytes())
            if isinstance(message, UnmaskRequest):
                self._files.write_json(OPENED, asdict(Opened(offer.round, answer.session)))
            self._link.upload(_path(offer), reply)

    def _check_unopened(self, round: int, going_on: str | None = None) -> None:
        """Round numbers only grow, so the last one is all that need be kept.

        `going_on` names a session whose state this device has: asked for its sum again, it gives the same answer.
        """
        opened = self._files.read_as(OPENED, Opened)
        if opened and round <= opened.round and (opened.round, opened.session) != (round, going_on):
            raise Declined(
                "round-opened", f"this device has opened a sum of round {opened.round}; it opens none of {round} now"
            )

    @contextmanager
    def _leaving(self, round: int, attempt: int) -> Iterator[None]:
        """Whatever goes wrong, the server is told, so that nobody waits for this device."""
        try:
            yield
        except Exception as error:  # a stranger's message must not end the device
            report(self._link, round, attempt, error, "session-left")

    def _ring(self, offer: WorkOffer, session: "ClientSession") -> np.ndarray:
        encoding = session.terms.encoding
        message = self._train(offer)
        vector = self._setup.codec.decode(message.frame, encoding.dimension)
        encoded = encoding.encode(vector.numpy(), message.weight, message.metrics)
        if encoded.saturated:
            log.warning("clipped", extra={"round": offer.round, "numbers": encoded.saturated})
        return encoded.ring

    def _terms(self, offer: WorkOffer) -> "Terms":
        assert self._setup.secagg
        self._setup.secagg.check(offer.invited)  # the server's word: with another number, noise could be lost
        numbers = self._setup.update_size(offer.numbers // self._setup.algorithm.vectors_down)
        session = bytes.fromhex(offer.session or "")
        return self._setup.secagg.terms(session, offer.round, offer.model, offer.invited, numbers, self._setup.metrics)

    def _known_offer(self) -> WorkOffer | None:
        """The offer of the session that this device is in; none if it, or the session's state, is gone or damaged."""
        if not self._files.exists(_OFFER):
            return None
        try:
            self._session()
            return parse(WorkOffer, self._files.read(_OFFER), 1 << 16)
        except FedAvgError as error:
            log.warning("session lost", extra={"detail": str(error)})
            return None

    def _session(self) -> "ClientSession":
        from fedavg.secagg import ClientSession

        return ClientSession.from_bytes(self._files.read(_SESSION), self._identity, self._least)


def _bare(offer: WorkOffer) -> WorkOffer:
    """The offer without what changes from poll to poll."""
    return replace(offer, deadline_s=0.0, counted=None)


def _path(offer: WorkOffer) -> str:
    return f"/v1/rounds/{offer.round}/{offer.attempt}/session"
