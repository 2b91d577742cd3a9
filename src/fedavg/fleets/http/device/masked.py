"""A device's side of rounds under secure aggregation: it answers the messages of a session, one by one.

The state of the session is written to disk before an answer is sent, so that a restarted device continues the same
session, and keeps refusing what it has refused. The terms follow from the device's own plan, never from what the
server says.

A device opens one sum per round number, whatever the attempt: two sums over cohorts that differ in one client would
reveal that client's update. The opened round is written to disk before the device sends its shares.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fedavg.client_path import Message
from fedavg.errors import FedAvgError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.device.policy import Declined
from fedavg.fleets.http.device.reports import report
from fedavg.fleets.http.protocol.messages import JudgeOffer, MaskAnswer, PollAnswer, WorkOffer
from fedavg.fleets.http.protocol.strict import dump, parse
from fedavg.metrics.spread import names_of_sums
from fedavg.metrics.training import masked_numbers
from fedavg.setup import Setup

if TYPE_CHECKING:
    from fedavg.secagg import ClientSession, Signing, Terms

log = logging.getLogger("fedavg.device")

_OFFER: Final = "offer.json"
_SESSION: Final = "session.json"
OPENED: Final = "opened.json"


@dataclass(frozen=True)
class Opened:
    """The last round whose sum this device has helped to open, and its session."""

    round: int
    session: str


Offer = WorkOffer | JudgeOffer


class MaskedRounds:
    """The session that this device is in, if any. `train` returns the update of an offer, the same each time; `judge`
    returns the sums of an evaluation.

    In signed sessions `identity` signs for this device; no sum of fewer than `least` clients is opened. Training and
    evaluations have separate sessions, whose files differ by `prefix`.
    """

    def __init__(
        self,
        setup: Setup,
        k: int,
        link: Link,
        files: DeviceFiles,
        train: Callable[[WorkOffer], Message],
        judge: Callable[[JudgeOffer], dict[str, float]],
        identity: "Signing | None",
        least: int,
        prefix: str = "",
        told: "Callable[[Offer], None]" = lambda _: None,
    ) -> None:
        """`told` is called with each offer whose masked numbers the server has accepted."""
        self._told = told
        self._setup, self._k, self._link, self._files, self._train = setup, k, link, files, train
        self._judge, self._identity, self._least = judge, identity, least
        self._offer_file, self._session_file, self._opened = prefix + _OFFER, prefix + _SESSION, prefix + OPENED

    def check(self, offer: Offer) -> None:
        """Refuse an offer of a round that this device has opened, even if it names the same session again."""
        self._check_unopened(offer.round)

    def begin(self, offer: Offer) -> bool:
        """Join the session of an offer: send the first message. False if the device left the session."""
        from fedavg.secagg import ClientSession

        with self._leaving(offer.round, offer.attempt) as troubles:
            known = self._known_offer()
            if known is None or _bare(known) != _bare(offer):
                session = ClientSession(self._terms(offer), self._k, self._identity, self._least)
                self._files.write(self._session_file, session.to_bytes())
                self._files.write(self._offer_file, dump(_kept(offer)))
            self._link.upload(_path(offer), self._session().advertise().to_bytes())
        return not troubles

    def step(self, answer: MaskAnswer) -> bool:
        """Fetch the waiting message and answer it. False if the device left the session."""
        from fedavg.secagg import answer as reply_to
        from fedavg.secagg import parse as parse_message
        from fedavg.secagg.messages import UnmaskRequest

        masked: list[Offer] = []
        with self._leaving(answer.round, answer.attempt) as troubles:
            offer = self._known_offer()
            if offer is None or (offer.session, offer.round) != (answer.session, answer.round):
                raise Declined("session-left", "this device has no part in the session; it may have lost its files")
            session = self._session()
            message = parse_message(self._link.fetch(_path(offer)))
            if isinstance(message, UnmaskRequest):
                self._check_unopened(offer.round, going_on=answer.session)
            try:
                reply = reply_to(session, message, lambda: self._ring(offer, session, masked)).to_bytes()
            finally:
                self._files.write(self._session_file, session.to_bytes())
            if isinstance(message, UnmaskRequest):
                self._files.write_json(self._opened, asdict(Opened(offer.round, answer.session)))
            self._link.upload(_path(offer), reply)
        if masked and not troubles:
            self._told(masked[0])
        return not troubles

    def _check_unopened(self, round: int, going_on: str | None = None) -> None:
        """Refuse a round that this device has opened. Round numbers only grow, so it is enough to keep the last one.

        `going_on` names a session whose state this device has; asked for its sum again, it gives the same answer.
        """
        opened = self._files.read_as(self._opened, Opened)
        if opened and round <= opened.round and (opened.round, opened.session) != (round, going_on):
            raise Declined(
                "round-opened", f"this device has opened a sum of round {opened.round}; it opens none of {round} now"
            )

    @contextmanager
    def _leaving(self, round: int, attempt: int) -> Iterator[list[Exception]]:
        """Report any error to the server, so that nobody waits for this device; the error is then in the list."""
        troubles: list[Exception] = []
        try:
            yield troubles
        except Exception as error:  # an untrusted message must not stop the device
            troubles.append(error)
            report(self._link, round, attempt, error, "session-left")

    def _ring(self, offer: Offer, session: "ClientSession", masked: list[Offer]) -> np.ndarray:
        masked.append(offer)
        encoding = session.terms.encoding
        if isinstance(offer, JudgeOffer):
            return encoding.encode(np.empty(0), 1.0, self._judge(offer)).ring
        message = self._train(offer)
        vector = self._setup.codec.decode(message.frame, encoding.dimension)
        measured = masked_numbers(self._setup.measures, message)
        encoded = encoding.encode(vector.numpy(), message.weight, measured)
        if encoded.saturated:
            log.warning("clipped", extra={"round": offer.round, "numbers": encoded.saturated})
        if encoded.capped:
            log.warning("capped", extra={"round": offer.round, "weight": message.weight, "cap": encoding.weight_cap})
        return encoded.ring

    def _terms(self, offer: Offer) -> "Terms":
        assert self._setup.secagg
        self._setup.secagg.check(offer.invited)  # the server chose it: with another number, noise could be lost
        numbers = self._setup.update_size(offer.numbers // self._setup.algorithm.vectors_down)
        metrics: Iterable[str] = self._setup.metrics
        if isinstance(offer, JudgeOffer):  # only sums: there is no vector
            numbers, metrics = 0, names_of_sums(self._setup.task.judged_by)
        session = bytes.fromhex(offer.session or "")
        return self._setup.secagg.terms(session, offer.round, offer.model, offer.invited, numbers, metrics)

    def _known_offer(self) -> Offer | None:
        """The offer of the current session; None if the offer, or the session's state, is missing or damaged."""
        if not self._files.exists(self._offer_file):
            return None
        try:
            self._session()
            offer = parse(PollAnswer, self._files.read(self._offer_file), 1 << 16)
            assert isinstance(offer, WorkOffer | JudgeOffer), "only offers are kept"
            return offer
        except FedAvgError as error:
            log.warning("session lost", extra={"detail": str(error)})
            return None

    def _session(self) -> "ClientSession":
        from fedavg.secagg import ClientSession

        return ClientSession.from_bytes(self._files.read(self._session_file), self._identity, self._least)


def _kept(offer: Offer) -> Offer:
    """The offer without the fields about earlier rounds."""
    return replace(offer, counted=None) if isinstance(offer, WorkOffer) else offer


def _bare(offer: Offer) -> Offer:
    """The offer without the fields that change from poll to poll."""
    return replace(_kept(offer), deadline_s=0.0)


def _path(offer: Offer) -> str:
    return f"/v1/rounds/{offer.round}/{offer.attempt}/session"
