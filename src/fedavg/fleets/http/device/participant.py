"""One client in one run: it polls, does what the server asks for, and keeps what it needs between rounds.

The update stays on the device's disk until its round is committed, so that a server that crashed can ask for it
again and a device that crashed need not train again.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from fedavg.client_path import ClientPath, Message
from fedavg.errors import FedAvgError
from fedavg.fleets.http.device.allowance import Allowance
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.judge import check_judging, sums_frame
from fedavg.fleets.http.device.link import Latest, Link, ServerRefused
from fedavg.fleets.http.device.local import Local
from fedavg.fleets.http.device.masked import MaskedRounds
from fedavg.fleets.http.device.models import Models, numbers_of
from fedavg.fleets.http.device.pending import Pending, Settled
from fedavg.fleets.http.device.plans import PlanOnDevice
from fedavg.fleets.http.device.policy import (
    LONGEST_WAIT_S,
    Declined,
    Ended,
    NoModel,
    OutOfTime,
    Policy,
    check_offer,
    fewest_survivors,
)
from fedavg.fleets.http.device.releases import Releases
from fedavg.fleets.http.device.reports import report
from fedavg.fleets.http.device.sources import Source
from fedavg.fleets.http.device.troubles import Troubles
from fedavg.fleets.http.protocol.messages import (
    JUDGING,
    MAX_MESSAGE,
    DoneAnswer,
    Eligibility,
    Holding,
    JudgeOffer,
    MaskAnswer,
    PollAnswer,
    PollRequest,
    Settling,
    Taken,
    UpdateAnswer,
    WaitAnswer,
    WorkOffer,
)
from fedavg.fleets.http.protocol.strict import parse
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.fleets.worker import judged, named_sums
from fedavg.privacy.served import BudgetSpent
from fedavg.setup import Setup
from fedavg.states import ClientStates
from fedavg.types import Work

if TYPE_CHECKING:
    from fedavg.secagg import Signing

log = logging.getLogger("fedavg.device")

#: Refusals that do not mean that the update is bad.
_NOT_NOW: Final = ("wrong-round", "round-closed", "upload-token-unknown")


@dataclass(frozen=True)
class TakenPart:
    """A round that this device took part in: the server has its update, by name or in a masked sum."""

    task: str
    round: int
    #: n_k, the number of examples trained on.
    examples: int
    #: What was measured in training, such as `train_loss`. It leaves the device only if the plan says so.
    metrics: dict[str, float]


@dataclass(frozen=True)
class Own:
    """What a device brings to any run."""

    link: Link
    #: The files of the device, whatever run it is in, and those of this run.
    files: DeviceFiles
    directory: Path
    source: Source
    eligible: Callable[[], Eligibility]
    policy: Policy
    #: Signs in sessions of secure aggregation, if an authority is pinned.
    signer: "Signing | None"
    max_epsilon: float | None
    spent: Path
    tell: Callable[[TakenPart], None]
    #: Returns whether the device is to stop.
    stopping: Callable[[], bool]


class Participant:
    """Client k of one run. Not thread-safe: one thread polls and works."""

    def __init__(self, agreed: PlanOnDevice, k: int, run: Taken, own: Own) -> None:
        self._sent, self._setup, self._own = agreed.sent, agreed.setup, own
        self.k, self.run, self._plan_digest = k, run, run.plan_digest
        self._link, self._files = own.link, DeviceFiles(own.directory)
        self._files.prepare()
        self._releases = Releases(self._setup, self._files, own.spent, own.max_epsilon)
        self._local = Local(own.source, self._setup, self.k)
        self.trainer = self._setup.new_trainer(self._local.trained_on)
        self._local.check_sizes(self.trainer)
        self._models = Models(self._link, self._files, self._setup.downlink)
        least = fewest_survivors(own.policy, self._setup)
        parts = (self._setup, self.k, self._link, self._files, self._message, self._found, own.signer, least)
        self._masking = MaskedRounds(*parts, told=self._tell)
        self._judging = MaskedRounds(*parts, prefix="judge-")
        self._states = ClientStates(own.directory / "states", durable=True)
        self._allowance = Allowance(own.files, own.policy.max_rounds_per_day)
        self._pending = self._files.read_as("update.json", Pending)
        self._settled = self._files.read_as("settled.json", Settled) or Settled(0)
        self._made: Message | None = None
        self._until = inf
        self._troubles = Troubles()
        log.info("ready", extra={"client": self.k, "engine": self.trainer.engine.name})

    @property
    def task(self) -> str:
        """The task's name in the plan."""
        return str(self._sent.task)

    @property
    def setup(self) -> Setup:
        return self._setup

    def latest_model(self, known: str) -> Latest | None:
        """The model that clients may download, checked; None if there is none newer than `known`."""
        size = 4 * len(self.trainer.weights)
        latest = self._link.latest_model(size, known)
        if latest is not None and len(latest.data) != size:
            raise NoModel(f"the model that came has {len(latest.data)} bytes; the task's has {size}")
        return latest

    def final_model(self, done: DoneAnswer) -> Latest | None:
        """The model of the run, which is over; None if it cannot be fetched."""
        return self._models.final(done, 4 * len(self.trainer.weights))

    @property
    def _counted_examples(self) -> int:
        """The most examples that the server may count: a kept update may be of more examples than there are now."""
        return max(self._local.count, self._pending.examples if self._pending and self._pending.trained else 0)

    # Polls

    def poll(self, wait_s: float) -> PollAnswer:
        self._local.refresh(self.trainer)
        pending = self._pending
        held = Holding(pending.round, pending.attempt, pending.model) if pending else None
        eligible = self._own.eligible()
        if not self._allowance.left():
            eligible = replace(eligible, idle=False)
        request = PollRequest(
            eligible=eligible, examples=self._counted_examples, holding=held, run=self.run, wait_s=wait_s
        )
        return self._link.insist(PollAnswer, "/v1/poll", request, wait_s)

    def answer(self, answer: PollAnswer) -> float:
        """Do what the answer asks for; returns the seconds until the next poll."""
        if isinstance(answer, WorkOffer) and not self._agrees(answer):
            return self._troubles.rest()
        self._settle(answer)
        if isinstance(answer, WaitAnswer):
            return min(answer.retry_after_s, LONGEST_WAIT_S) * random.uniform(0.9, 1.1)
        if isinstance(answer, DoneAnswer) or self._done_well(answer):
            self._troubles.over()
            return 0.0
        return self._troubles.rest()

    def _done_well(self, answer: PollAnswer) -> bool:
        if isinstance(answer, WorkOffer):
            return self._work(answer)
        if isinstance(answer, JudgeOffer):
            return self._judge(answer)
        assert isinstance(answer, MaskAnswer)
        return (self._judging if answer.attempt >= JUDGING else self._masking).step(answer)

    # Rounds

    def _agrees(self, offer: WorkOffer) -> bool:
        """Is the offer within the plan, the task and the policy? If not, tell the server why."""
        try:
            check_offer(self._own.policy, self._setup, self._numbers, offer)
            self._masking.check(offer)
            if offer.round <= self._settled.round:
                # from a replica that was paused; training again would count twice here
                raise Declined(
                    "bad-offer",
                    f"round {offer.round} is offered, but an update of this device is in round {self._settled.round}; "
                    "to do rounds again from an older database, remove settled.json here",
                )
            if not self._has_begun(offer) and not self._allowance.left():
                most = self._own.policy.max_rounds_per_day
                raise Declined("many-rounds", f"this device takes part in {most} rounds a day at most")
            if not self._has_begun(offer) and not len(self._local.trained_on):
                raise Declined("no-examples", "this device has no examples now")
        except Declined as error:
            report(self._link, offer.round, offer.attempt, error, error.reason)
            return False
        return True

    def _has_begun(self, offer: WorkOffer) -> bool:
        return self._pending is not None and self._pending.answers(offer)

    @property
    def _numbers(self) -> int:
        return len(self.trainer.weights) * self._setup.algorithm.vectors_down

    def _settle(self, answer: PollAnswer) -> None:
        """Drop the previous work if it is over; if it did not count, also undo what this client kept because of it."""
        pending = self._pending
        if pending is None or not isinstance(answer, Settling):
            return
        if answer.counted is not None:
            self._drop_pending(keep_state=answer.counted)
        elif pending.round <= committed(answer):
            # A server that accepts anonymous updates does not know whose counted.
            self._drop_pending(keep_state=pending.accepted)
        elif isinstance(answer, WorkOffer) and not pending.answers(answer):  # another attempt at the same round
            if self._releases.has(answer):
                self._note(replace(pending, attempt=answer.attempt, trained=False, accepted=False))
            else:
                self._drop_pending(keep_state=False)

    def _work(self, offer: WorkOffer) -> bool:
        """Do the work, or tell the server why not: nobody should wait for a device that failed."""
        try:
            self._releases.check(offer)
        except BudgetSpent as error:
            report(self._link, offer.round, offer.attempt, error, "budget-spent")
            raise
        self._until = monotonic() + offer.deadline_s
        if self._pending is None:
            self._allowance.spend()
        pending = self._pending or Pending(offer.round, offer.attempt, offer.model, offer.upload_token)
        self._note(replace(pending, token=offer.upload_token))  # a restarted server issues other tokens
        if self._setup.secagg:
            return self._masking.begin(offer)
        try:
            if not pending.trained:
                self._train(offer)
        except Exception as error:  # neither an untrusted offer nor a bug in the task stops the device
            report(self._link, offer.round, offer.attempt, error, "training-failed")
            return False
        try:
            return self._upload(offer)
        except ServerRefused as refusal:
            return self._refused(offer, refusal)
        except FedAvgError as error:  # it keeps the update; the next poll says whether it counted
            log.warning("upload failed", extra={"round": offer.round, "detail": str(error)})
            return False

    def _judge(self, offer: JudgeOffer) -> bool:
        """Judge the model, or tell the server why not. A kept update is not touched."""
        try:
            check_judging(self._own.policy, self._sent, self._setup, len(self._local.held), offer)
            if offer.session is not None:
                self._judging.check(offer)
                return self._judging.begin(offer)
            frame = sums_frame(self._plan_digest, offer, self._found(offer))
            return self._send(offer, offer.upload_token, frame).accepted
        except Exception as error:  # neither an untrusted offer nor a bug in a metric stops the device
            report(self._link, offer.round, offer.attempt, error, "training-failed")
            return False

    def _found(self, offer: JudgeOffer) -> dict[str, float]:
        """The sums of the offered model over the examples that this device holds out."""
        if offer.numbers != len(self.trainer.weights):
            raise Declined(
                "bad-offer", f"{offer.numbers} numbers are offered; the task has {len(self.trainer.weights)}"
            )
        self.trainer.load(numbers_of(self._models.whole(offer)))
        return named_sums(judged(self.trainer, self._local.held, "what this device holds out"))

    def _train(self, offer: WorkOffer) -> None:
        assert self._pending
        self._files.write("update.frame", self._frame(offer, self._message(offer)))
        self._note(replace(self._pending, trained=True, examples=self._local.count))

    def _message(self, offer: WorkOffer) -> Message:
        """The update of an offer; the same offer always gives the same update."""
        self._made = self._releases.message(offer, self._trained)
        return self._made

    def _trained(self, offer: WorkOffer) -> Message:
        shared = numbers_of(self._models.fetch(offer))
        work = Work(
            round=offer.round,
            epochs=offer.epochs,
            batch=offer.batch if offer.batch is not None else inf,
            lr=offer.lr,
            settings=offer.settings,
        )
        states = self._states if self._setup.keeps_state else None
        until = min(self._until, monotonic() + offer.deadline_s)  # a restarted device has the time of its offer

        def go_on() -> None:
            if self._own.stopping():
                raise Ended(f"round {offer.round}: this device was stopped before the training was over")
            if monotonic() >= until:
                raise OutOfTime(f"round {offer.round}: the deadline came before the training was over")

        path = ClientPath(self._setup, self.trainer, self.k, self._local.trained_on, work, states, go_on)
        with path.training() as client:
            update = self._setup.algorithm.client_update(client, shared, work)
        return path.message(update)

    def _frame(self, offer: WorkOffer, message: Message) -> bytes:
        header = UpdateHeader(
            plan=self._plan_digest,
            round=offer.round,
            attempt=offer.attempt,
            model=offer.model,
            codec=self._setup.codec.name,
            numbers=self._setup.update_size(len(self.trainer.weights)),
            weight=message.weight,
            metrics=message.metrics,
        )
        return encode_update(header, message.frame)

    def _upload(self, offer: WorkOffer) -> bool:
        pending = self._pending
        assert pending
        answer = self._send(pending, pending.token, self._files.read("update.frame"))
        if answer.accepted:
            self._note(replace(pending, accepted=True))
            sent = {"round": pending.round, "attempt": pending.attempt}
            log.info("accepted", extra={**sent, "duplicate": answer.duplicate})
            self._tell(offer)
        return answer.accepted

    def _tell(self, offer: WorkOffer | JudgeOffer) -> None:
        """Report a round to the owner once: not again when its update is sent again."""
        if self._made is not None and isinstance(offer, WorkOffer):
            measured, self._made = self._made.metrics, None
            self._own.tell(TakenPart(self.task, offer.round, len(self._local.trained_on), measured))

    def _send(self, to: "Pending | JudgeOffer", token: str | None, frame: bytes) -> UpdateAnswer:
        path = f"/v1/rounds/{to.round}/{to.attempt}"
        if token is None:
            body = self._link.upload(f"{path}/update", frame)
        else:
            body = self._link.upload_anonymously(f"{path}/anonymous", frame, token)
        return parse(UpdateAnswer, body, MAX_MESSAGE)

    def _refused(self, offer: WorkOffer, refusal: ServerRefused) -> bool:
        """A server that restarts may ask again for an update that is not wanted now, but never for a bad one."""
        log.warning("update refused", extra={"round": offer.round, "reason": refusal.error})
        if refusal.error in _NOT_NOW:
            return True
        if not self._releases.has(offer):  # a noised update must not be made again with other noise
            self._drop_pending(keep_state=False)
        report(self._link, offer.round, offer.attempt, refusal, "update-refused")
        return False

    # What is kept

    def _note(self, pending: Pending) -> None:
        self._files.write_json("update.json", asdict(pending))
        self._pending = pending

    def _drop_pending(self, keep_state: bool) -> None:
        if self._pending and self._setup.keeps_state:
            if keep_state:
                self._states.settle(self._pending.round)
                self._settled = Settled(self._pending.round)
                self._files.write_json("settled.json", asdict(self._settled))
            else:
                self._states.discard(self.k, self._pending.round)
        self._pending = None
        self._files.remove("update.json")
        self._files.remove("update.frame")


def committed(answer: Settling) -> int:
    """The last committed round, according to an answer."""
    if isinstance(answer, WaitAnswer):
        return answer.committed
    return answer.round - 1 if isinstance(answer, WorkOffer) else answer.round
