"""A client on a real device: `fedavg join`. It holds its own data and its own installed task code.

The update is kept on the device's disk until its round is committed, so that a server that crashed can ask for it
again and a device that crashed need not train again. The plan comes from the server; code never does: a task must be
installed here, and its owner must have named it (`--task`), and so must any other code that the plan names (`--allow`).
"""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from fedavg.client_path import Message, run_client
from fedavg.data.holdout import hold_out
from fedavg.engine.single import check_single
from fedavg.engine.threads import one_thread
from fedavg.errors import DataError, FedAvgError, FleetError
from fedavg.fleets.http.device.allowance import Allowance
from fedavg.fleets.http.device.enrolment import Application, Enrolment, enrolled, own_key
from fedavg.fleets.http.device.files import DeviceFiles, private_umask
from fedavg.fleets.http.device.judge import check_judging, sums_frame
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.device.masked import MaskedRounds
from fedavg.fleets.http.device.models import Models
from fedavg.fleets.http.device.pending import Pending, Settled
from fedavg.fleets.http.device.plans import PlanOnDevice, resolve_sent
from fedavg.fleets.http.device.policy import (
    LONGEST_WAIT_S,
    Declined,
    OutOfTime,
    Policy,
    check_offer,
    check_plan,
    fewest_survivors,
)
from fedavg.fleets.http.device.releases import Releases
from fedavg.fleets.http.device.reports import report
from fedavg.fleets.http.protocol.keys import ClientKey
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
    UpdateAnswer,
    WaitAnswer,
    WorkOffer,
)
from fedavg.fleets.http.protocol.strict import parse
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.fleets.worker import judged, named_sums
from fedavg.privacy.served import BudgetSpent
from fedavg.runlog.rundir import RunDir
from fedavg.states import ClientStates
from fedavg.types import Examples, Work

if TYPE_CHECKING:
    from fedavg.secagg import Signing

log = logging.getLogger("fedavg.device")

#: Seconds that a device pauses after it has declined an offer: a server that goes on offering does not keep it busy.
DECLINED_S: Final = 1.0
#: Seconds that a poll is held open by the server when there is nothing to do.
HELD_S: Final = 25.0
#: Refusals of an update that say nothing against it.
_NOT_NOW: Final = ("wrong-round", "round-closed", "upload-token-unknown")


class Device:
    """One client. `directory` holds its key, its number, what it keeps between rounds and its pending update.

    `allowed` names the packages that parts of the server's plan may come from.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        examples: Examples,
        task: str,
        *,
        make_link: Callable[[ClientKey], Link],
        token: str | None,
        client: int | None = None,
        name: str = "",
        eligible: Callable[[], Eligibility],
        allowed: Sequence[str] = (),
        policy: Policy | None = None,
        vouched: "Callable[[DeviceFiles, ClientKey], Signing] | None" = None,
        max_epsilon: float | None = None,
        spent: Path | None = None,
    ) -> None:
        """`vouched` gives the identity that signs in sessions of secure aggregation, if an authority is pinned."""
        self._url, self._directory, self._examples, self._task = url, directory, examples, task
        self._application = Application(token, len(examples), task, name, client)
        self._eligible = eligible
        self._policy = policy or Policy()
        self._allowed = tuple(allowed)
        self._max_epsilon, self._spent = max_epsilon, spent or directory / "spent.json"
        self._files = DeviceFiles(directory)
        self._files.prepare()
        key = own_key(directory / "key.pem")
        self._signer = vouched(self._files, key) if vouched else None
        self._link = make_link(key)
        self._states = ClientStates(directory / "states", durable=True)
        self._allowance = Allowance(self._files, self._policy.max_rounds_per_day)
        self._pending = self._files.read_as("update.json", Pending)
        self._settled = self._files.read_as("settled.json", Settled) or Settled(0)
        self._until = inf

    def run(self) -> int:
        """Work until the server says that the run is over; returns the last round."""
        with private_umask(), RunDir(self._directory).locked(), one_thread(), closing(self._link):
            if not len(self._examples):
                raise DataError("this device has no examples; expected one at least before it enrols")
            identity = enrolled(self._url, self._link, self._files, self._application)
            self._link.signer.client = identity.client
            self._k = identity.client
            self._plan_digest = identity.plan_digest
            agreed = self._agreed(identity)
            self._sent, self._setup = agreed.sent, agreed.setup
            self._releases = Releases(self._setup, self._files, self._spent, self._max_epsilon)
            plan = self._setup.plan
            self._trained_on, self._held = hold_out(self._examples, plan.holdout, plan.seed, self._k)
            self._trainer = self._setup.new_trainer(self._trained_on)
            plan, sizes = self._setup.plan, np.array([len(self._trained_on)])
            check_single(self._trainer, self._trained_on, sizes, plan.schedule("B").values, plan.drop_last)
            self._models = Models(self._link, self._files, self._setup.downlink)
            least = fewest_survivors(self._policy, self._setup)
            parts = (self._setup, self._k, self._link, self._files, self._message, self._found, self._signer, least)
            self._masking, self._judging = MaskedRounds(*parts), MaskedRounds(*parts, prefix="judge-")
            log.info("ready", extra={"client": self._k, "engine": self._trainer.engine.name})
            while True:
                answer = self._poll()
                if isinstance(answer, WorkOffer) and not self._agrees(answer):
                    sleep(DECLINED_S * random.uniform(0.5, 1.5))
                    continue
                self._settle(answer)
                if isinstance(answer, DoneAnswer):
                    log.info("the run is over", extra={"round": answer.round, "model": answer.model})
                    return answer.round
                if isinstance(answer, WorkOffer):
                    self._work(answer)
                elif isinstance(answer, JudgeOffer):
                    self._judge(answer)
                elif isinstance(answer, MaskAnswer):
                    (self._judging if answer.attempt >= JUDGING else self._masking).step(answer)
                elif isinstance(answer, WaitAnswer):
                    sleep(min(answer.retry_after_s, LONGEST_WAIT_S) * random.uniform(0.9, 1.1))

    # Joining

    def _agreed(self, identity: Enrolment) -> PlanOnDevice:
        """The plan, if this device's user agrees to it; if not, the server is told why before the device ends."""
        try:
            agreed = resolve_sent(identity, self._task, self._allowed)
            check_plan(self._policy, agreed.setup, self._signer is not None)
        except Declined as error:
            report(self._link, 0, 0, error, "bad-plan")
            raise
        return agreed

    # Rounds

    def _poll(self) -> PollAnswer:
        pending = self._pending
        held = Holding(pending.round, pending.attempt, pending.model) if pending else None
        eligible = self._eligible()
        if not self._allowance.left():
            eligible = replace(eligible, idle=False)
        request = PollRequest(eligible=eligible, holding=held, wait_s=HELD_S)
        return self._link.insist(PollAnswer, "/v1/poll", request, HELD_S)

    def _agrees(self, offer: WorkOffer) -> bool:
        """Is the offer within the plan, the task and the policy? If not, the server is told why."""
        try:
            check_offer(self._policy, self._setup, self._numbers, offer)
            self._masking.check(offer)
            if (
                offer.round <= self._settled.round
            ):  # of a replica that was paused; to train again would count twice here
                raise Declined(
                    "bad-offer",
                    f"round {offer.round} is offered, but an update of this device is in round {self._settled.round}; "
                    "to do rounds again from an older database, remove settled.json here",
                )
            if not self._has_begun(offer) and not self._allowance.left():
                most = self._policy.max_rounds_per_day
                raise Declined("many-rounds", f"this device takes part in {most} rounds a day at most")
        except Declined as error:
            report(self._link, offer.round, offer.attempt, error, error.reason)
            return False
        return True

    def _has_begun(self, offer: WorkOffer) -> bool:
        return self._pending is not None and self._pending.answers(offer)

    @property
    def _numbers(self) -> int:
        return len(self._trainer.weights) * self._setup.algorithm.vectors_down

    def _settle(self, answer: PollAnswer) -> None:
        """Let go of the work before, if it is over, and of what this client keeps by it, if it did not count."""
        pending = self._pending
        if pending is None or not isinstance(answer, Settling):
            return
        if answer.counted is not None:
            self._drop_pending(keep_state=answer.counted)
        elif pending.round <= _committed(answer):
            # A server that takes updates without a name does not know whose counted.
            self._drop_pending(keep_state=pending.accepted)
        elif isinstance(answer, WorkOffer) and not pending.answers(answer):  # another attempt at the same round
            if self._releases.has(answer):
                self._note(replace(pending, attempt=answer.attempt, trained=False, accepted=False))
            else:
                self._drop_pending(keep_state=False)

    def _work(self, offer: WorkOffer) -> None:
        """Do what is asked, or say why not: nobody should wait for a device that failed."""
        try:
            self._releases.check(offer)
        except BudgetSpent as error:
            report(self._link, offer.round, offer.attempt, error, "budget-spent")
            raise
        self._until = monotonic() + offer.deadline_s
        if self._pending is None:
            self._allowance.spend()
        pending = self._pending or Pending(offer.round, offer.attempt, offer.model, offer.upload_token)
        self._note(replace(pending, token=offer.upload_token))  # a server that was restarted gives out other tokens
        if self._setup.secagg:
            self._masking.begin(offer)
            return
        try:
            if not pending.trained:
                self._train(offer)
        except Exception as error:  # neither a stranger's offer nor a mistake in the task ends the device
            report(self._link, offer.round, offer.attempt, error, "training-failed")
            return
        try:
            self._upload()
        except ServerRefused as refusal:
            self._refused(offer, refusal)
        except FedAvgError as error:  # it keeps the update, and hears at the next poll what became of it
            log.warning("upload failed", extra={"round": offer.round, "detail": str(error)})

    def _judge(self, offer: JudgeOffer) -> None:
        """Judge the model as asked, or say why not. The update that is kept, if any, is not touched."""
        try:
            check_judging(self._policy, self._sent, self._setup, len(self._held), offer)
            if offer.session is not None:
                self._judging.check(offer)
                self._judging.begin(offer)
                return
            frame = sums_frame(self._plan_digest, offer, self._found(offer))
            self._send(offer, offer.upload_token, frame)
        except Exception as error:  # neither a stranger's offer nor a mistake in a metric ends the device
            report(self._link, offer.round, offer.attempt, error, "training-failed")
            sleep(DECLINED_S * random.uniform(0.5, 1.5))

    def _found(self, offer: JudgeOffer) -> dict[str, float]:
        """What the model of an offer comes to on what this device holds out."""
        if offer.numbers != len(self._trainer.weights):
            raise Declined(
                "bad-offer", f"{offer.numbers} numbers are offered; the task has {len(self._trainer.weights)}"
            )
        self._trainer.load(_numbers_of(self._models.whole(offer)))
        return named_sums(judged(self._trainer, self._held, "what this device holds out"))

    def _train(self, offer: WorkOffer) -> None:
        assert self._pending
        self._files.write("update.frame", self._frame(offer, self._message(offer)))
        self._note(replace(self._pending, trained=True))

    def _message(self, offer: WorkOffer) -> Message:
        """The update that is asked for; what comes out is the same whenever it is asked."""
        return self._releases.message(offer, self._trained)

    def _trained(self, offer: WorkOffer) -> Message:
        shared = self._fetch(offer)
        work = Work(
            round=offer.round,
            epochs=offer.epochs,
            batch=offer.batch if offer.batch is not None else inf,
            lr=offer.lr,
            settings=offer.settings,
        )
        states = self._states if self._setup.keeps_state else None
        until = min(self._until, monotonic() + offer.deadline_s)  # a device that was restarted has its offer's time

        def go_on() -> None:
            if monotonic() >= until:
                raise OutOfTime(f"round {offer.round}: the deadline came before the training was over")

        return run_client(self._setup, self._trainer, self._k, self._trained_on, work, shared, states, go_on)

    def _frame(self, offer: WorkOffer, message: Message) -> bytes:
        header = UpdateHeader(
            plan=self._plan_digest,
            round=offer.round,
            attempt=offer.attempt,
            model=offer.model,
            codec=self._setup.codec.name,
            numbers=self._setup.update_size(len(self._trainer.weights)),
            weight=message.weight,
            metrics=message.metrics,
        )
        return encode_update(header, message.frame)

    def _fetch(self, offer: WorkOffer) -> Tensor:
        """The shared vector, checked against the digest that it was asked for by."""
        return _numbers_of(self._models.fetch(offer))

    def _upload(self) -> None:
        pending = self._pending
        assert pending
        answer = self._send(pending, pending.token, self._files.read("update.frame"))
        if answer.accepted:
            self._note(replace(pending, accepted=True))
            sent = {"round": pending.round, "attempt": pending.attempt}
            log.info("accepted", extra={**sent, "duplicate": answer.duplicate})

    def _send(self, to: "Pending | JudgeOffer", token: str | None, frame: bytes) -> UpdateAnswer:
        path = f"/v1/rounds/{to.round}/{to.attempt}"
        if token is None:
            body = self._link.upload(f"{path}/update", frame)
        else:
            body = self._link.upload_anonymously(f"{path}/anonymous", frame, token)
        return parse(UpdateAnswer, body, MAX_MESSAGE)

    def _refused(self, offer: WorkOffer, refusal: ServerRefused) -> None:
        """An update that is not wanted now may be asked for by a server that was just restarted; a bad one never is."""
        log.warning("update refused", extra={"round": offer.round, "reason": refusal.error})
        if refusal.error not in _NOT_NOW:
            if not self._releases.has(offer):  # what was noised is not made again, with other noise
                self._drop_pending(keep_state=False)
            report(self._link, offer.round, offer.attempt, refusal, "update-refused")

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
                self._states.discard(self._k, self._pending.round)
        self._pending = None
        self._files.remove("update.json")
        self._files.remove("update.frame")


def _committed(answer: Settling) -> int:
    """The last round that is committed, as an answer tells."""
    if isinstance(answer, WaitAnswer):
        return answer.committed
    return answer.round - 1 if isinstance(answer, WorkOffer) else answer.round


def _numbers_of(data: bytes) -> Tensor:
    """The numbers of a model that came, shape (P,) float32."""
    numbers = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
    if not bool(torch.isfinite(numbers).all()):
        raise FleetError("the model that came holds NaN or infinity")
    return numbers
