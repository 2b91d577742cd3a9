"""A device's side of rounds under secure aggregation: it answers the messages of a session, one by one.

The state of the session is on the disk before an answer is sent, so that a device that is started again goes on in the
same session, and keeps refusing what it has refused. The terms follow from the device's own plan, never from the
server's word.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedavg.client import Message
from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.protocol.messages import (
    JudgeOffer,
    MaskAnswer,
    PollAnswer,
    ReportRequest,
    UpdateAnswer,
    WorkOffer,
    dump,
    parse,
    printable,
)
from fedavg.metrics.spread import names_of_sums
from fedavg.setup import Setup

if TYPE_CHECKING:
    from fedavg.secagg import ClientSession, Terms

log = logging.getLogger("fedavg.device")

_OFFER, _SESSION = "offer.json", "session.json"

Offer = WorkOffer | JudgeOffer


class MaskedRounds:
    """The session that this device is in, if any. `train` gives the update of an offer, the same each time, and
    `judge` the sums of an evaluation."""

    def __init__(
        self,
        setup: Setup,
        k: int,
        link: Link,
        files: DeviceFiles,
        train: Callable[[WorkOffer], Message],
        judge: Callable[[JudgeOffer], dict[str, float]],
    ) -> None:
        self._setup, self._k, self._link, self._files, self._train = setup, k, link, files, train
        self._judge = judge

    def begin(self, offer: Offer) -> None:
        """Take part in the session of an offer: send the first message."""
        from fedavg.secagg import ClientSession

        with self._leaving(offer.round, offer.attempt):
            if not self._files.exists(_OFFER) or self._offer() != _bare(offer):
                self._files.write(_SESSION, ClientSession(self._terms(offer), self._k).to_bytes())
                self._files.write(_OFFER, dump(_bare(offer)))
            self._link.upload(_path(offer), self._session().advertise().to_bytes())

    def step(self, answer: MaskAnswer) -> None:
        """Fetch the message that waits, and answer it."""
        from fedavg.secagg import answer as reply_to
        from fedavg.secagg import parse as parse_message

        with self._leaving(answer.round, answer.attempt):
            if not self._files.exists(_OFFER) or self._offer().session != answer.session:
                raise FleetError("this device has no part in the session; it may have lost its files")
            offer, session = self._offer(), self._session()
            message = parse_message(self._link.fetch(_path(offer)))
            try:
                reply = reply_to(session, message, lambda: self._ring(offer, session)).to_bytes()
            finally:
                self._files.write(_SESSION, session.to_bytes())
            self._link.upload(_path(offer), reply)

    @contextmanager
    def _leaving(self, round: int, attempt: int) -> Iterator[None]:
        """Whatever goes wrong, the server is told, so that nobody waits for this device."""
        try:
            yield
        except FedAvgError as error:
            log.warning("left the session", extra={"round": round, "detail": str(error)})
            report = ReportRequest(
                round=round, attempt=attempt, kind="failed", reason="session-left", detail=printable(str(error), 500)
            )
            with suppress(ServerRefused):
                self._link.ask(UpdateAnswer, "/v1/report", report)

    def _ring(self, offer: Offer, session: "ClientSession") -> np.ndarray:
        encoding = session.terms.encoding
        if isinstance(offer, JudgeOffer):
            return encoding.encode(np.empty(0), 1.0, self._judge(offer)).ring
        message = self._train(offer)
        vector = self._setup.codec.decode(message.frame, encoding.dimension)
        encoded = encoding.encode(vector.numpy(), message.weight, message.metrics)
        if encoded.saturated:
            log.warning("clipped", extra={"round": offer.round, "numbers": encoded.saturated})
        return encoded.ring

    def _terms(self, offer: Offer) -> "Terms":
        assert self._setup.secagg
        self._setup.secagg.check(offer.invited)  # the server's word: with another number, noise could be lost
        numbers = self._setup.update_size(offer.numbers // self._setup.algorithm.vectors_down)
        metrics: Iterable[str] = self._setup.metrics
        if isinstance(offer, JudgeOffer):  # sums alone: there is no vector
            numbers, metrics = 0, names_of_sums(self._setup.task.judged_by)
        session = bytes.fromhex(offer.session or "")
        return self._setup.secagg.terms(session, offer.round, offer.model, offer.invited, numbers, metrics)

    def _offer(self) -> Offer:
        offer = parse(PollAnswer, self._files.read(_OFFER), 1 << 16)
        assert isinstance(offer, WorkOffer | JudgeOffer)
        return offer

    def _session(self) -> "ClientSession":
        from fedavg.secagg import ClientSession

        return ClientSession.from_bytes(self._files.read(_SESSION))


def _bare(offer: Offer) -> Offer:
    """The offer without what changes from poll to poll."""
    if isinstance(offer, JudgeOffer):
        return replace(offer, deadline_s=0.0)
    return replace(offer, deadline_s=0.0, counted=None)


def _path(offer: Offer) -> str:
    return f"/v1/rounds/{offer.round}/{offer.attempt}/session"
