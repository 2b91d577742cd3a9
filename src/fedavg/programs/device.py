"""A client on a real device: `fedavg join`. It holds its own data and its own installed task code.

The update is kept on the device's disk until its round is committed, so that a server that crashed can ask for it
again and a device that crashed need not train again. The plan comes from the server; code never does: a task must be
installed here, and its owner must have named it (`--task`), and so must any other code that the plan names (`--allow`).
"""

import logging
import random
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from time import sleep
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.client import Message, run_client
from fedavg.data.holdout import hold_out
from fedavg.engine.single import check_single
from fedavg.engine.threads import one_thread
from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.judge import check_judging, sums_frame
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.device.masked import MaskedRounds
from fedavg.fleets.http.device.models import Models
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import (
    MAX_MESSAGE,
    PROTOCOL,
    DoneAnswer,
    Eligibility,
    Enrolled,
    EnrolRequest,
    Holding,
    JudgeOffer,
    MaskAnswer,
    PollAnswer,
    PollRequest,
    ReportRequest,
    Settling,
    UpdateAnswer,
    WaitAnswer,
    WorkOffer,
    parse,
    printable,
)
from fedavg.fleets.http.protocol.wire import UpdateHeader, encode_update
from fedavg.fleets.worker import judged, named_sums
from fedavg.plan import Plan, make_plan
from fedavg.runlog.rundir import RunDir
from fedavg.setup import Setup, resolve_on_device
from fedavg.specs import importing_only
from fedavg.states import ClientStates
from fedavg.types import Examples, Work

log = logging.getLogger("fedavg.device")

#: Seconds that a poll is held open by the server when there is nothing to do.
HELD_S: Final = 25.0
#: Refusals of an update that say nothing against it.
_NOT_NOW: Final = ("wrong-round", "round-closed", "upload-token-unknown")


@dataclass(frozen=True)
class Identity:
    """What the device was told when it enrolled."""

    server: str
    client: int
    plan: str
    plan_digest: str


@dataclass(frozen=True)
class Pending:
    """Work that was begun, and is remembered until it is known whether it counted. `token` uploads it without a name.

    It is noted before the training, which changes what this client keeps between rounds: that is taken back should the
    work come to nothing.
    """

    round: int
    attempt: int
    model: str
    token: str | None
    trained: bool = False
    accepted: bool = False

    def answers(self, offer: WorkOffer) -> bool:
        return (self.round, self.attempt, self.model) == (offer.round, offer.attempt, offer.model)


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
    ) -> None:
        self._url, self._directory, self._examples, self._task = url, directory, examples, task
        self._token, self._wanted, self._name, self._eligible = token, client, name, eligible
        self._allowed = tuple(allowed)
        directory.mkdir(parents=True, exist_ok=True)
        self._link = make_link(_own_key(directory / "key.pem"))
        self._states = ClientStates(directory / "states", durable=True)
        self._files = DeviceFiles(directory)
        self._pending = self._load_pending()

    def run(self) -> int:
        """Work until the server says that the run is over; returns the last round."""
        with RunDir(self._directory).locked(), one_thread(), closing(self._link):
            identity = self._enrolled()
            self._link.signer.client = identity.client
            self._k = identity.client
            self._plan_digest = identity.plan_digest
            self._setup = self._resolve(identity)
            plan = self._setup.plan
            self._trained_on, self._held = hold_out(self._examples, plan.holdout, plan.seed, self._k)
            self._trainer = self._setup.new_trainer(self._trained_on)
            check_single(self._trainer, self._trained_on, np.array([len(self._trained_on)]), self._setup.plan)
            self._models = Models(self._link, self._files, self._setup.downlink)
            self._masking = MaskedRounds(self._setup, self._k, self._link, self._files, self._message, self._found)
            log.info("ready", extra={"client": self._k, "engine": self._trainer.engine.name})
            while True:
                answer = self._poll()
                self._settle(answer)
                if isinstance(answer, DoneAnswer):
                    return answer.round
                if isinstance(answer, WorkOffer):
                    self._work(answer)
                elif isinstance(answer, JudgeOffer):
                    self._judge(answer)
                elif isinstance(answer, MaskAnswer):
                    self._masking.step(answer)
                elif isinstance(answer, WaitAnswer):
                    sleep(answer.retry_after_s * random.uniform(0.9, 1.1))

    # Joining

    def _enrolled(self) -> Identity:
        """Who this device is; asks the server the first time."""
        known = self._files.read_json("enrolled.json")
        if known is not None:
            identity = Identity(**known)
            if identity.server != self._url:
                raise FleetError(
                    f"{self._directory} belongs to {identity.server}, not to {self._url}; use another --state directory"
                )
            return identity
        if self._token is None:
            raise FleetError("this device is not enrolled yet; expected --token with a join token of the server")
        request = EnrolRequest(
            token=self._token,
            key=_base64(self._link.signer.key.public),
            examples=len(self._examples),
            name=self._name,
            client=self._wanted,
            task=self._task,
            protocol=PROTOCOL,
        )
        answer = self._link.ask(Enrolled, "/v1/enrol", request)
        identity = Identity(self._url, answer.client, answer.plan, answer.plan_digest)
        self._files.write_json("enrolled.json", asdict(identity))
        log.info("enrolled", extra={"client": identity.client})
        return identity

    def _resolve(self, identity: Identity) -> Setup:
        """The server's plan on this device's data. No code is imported but what this device's owner named."""
        try:
            values = tomllib.loads(identity.plan)
            sent = make_plan(values, "the server's plan")
        except FedAvgError:
            raise
        except Exception as error:  # whatever a parser trips over in a stranger's text is the stranger's mistake
            raise FleetError(f"the server's plan can not be read: {str(error)[:200]}") from None
        if sent.task != self._task:
            raise FleetError(f"the server's plan is for task '{sent.task}'; this device has '{self._task}'")
        if sent.digest != identity.plan_digest:
            raise FleetError(
                f"the server's plan has digest {sent.digest} here, not {identity.plan_digest}: use the server's version"
            )
        own = {name: getattr(Plan(), name) for name in _runtime_options()}
        # Who judges, and when the run stops, is the server's matter; what may be asked is checked against `sent`.
        self._sent, others = sent, {"evaluate": "none", "eval_clients": None, "target": None, "patience": None}
        with importing_only([*self._allowed, self._task.partition(":")[0]]):
            return resolve_on_device(make_plan({**values, **own, **others, "device": "cpu"}))

    # Rounds

    def _poll(self) -> PollAnswer:
        pending = self._pending
        held = Holding(pending.round, pending.attempt, pending.model) if pending else None
        engine = self._trainer.engine.name.replace(" ", "-")
        request = PollRequest(eligible=self._eligible(), holding=held, wait_s=HELD_S, engine=engine)
        return self._link.ask(PollAnswer, "/v1/poll", request, HELD_S)

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
            self._drop_pending(keep_state=False)

    def _work(self, offer: WorkOffer) -> None:
        """Do what is asked, or say why not: nobody should wait for a device that failed."""
        pending = self._pending or Pending(offer.round, offer.attempt, offer.model, offer.upload_token)
        self._note(replace(pending, token=offer.upload_token))  # a server that was restarted gives out other tokens
        if self._setup.secagg:
            self._masking.begin(offer)
            return
        try:
            if not pending.trained:
                self._train(offer)
        except FedAvgError as error:
            log.warning("failed", extra={"round": offer.round, "detail": str(error)})
            self._say_failed(offer, str(error))
            return
        try:
            self._upload()
        except ServerRefused as refusal:
            self._refused(offer, refusal)

    def _judge(self, offer: JudgeOffer) -> None:
        """Judge the model as asked, or say why not. The update that is kept, if any, is not touched."""
        try:
            check_judging(self._sent, self._setup, len(self._held), offer)
            if offer.session is not None:
                self._masking.begin(offer)
                return
            frame = sums_frame(self._plan_digest, offer, self._found(offer))
            self._send(offer, offer.upload_token, frame)
        except ServerRefused as refusal:
            log.warning("sums refused", extra={"round": offer.round, "reason": refusal.error})
        except FedAvgError as error:
            log.warning("not judged", extra={"round": offer.round, "detail": str(error)})
            self._say_failed(offer, str(error))

    def _found(self, offer: JudgeOffer) -> dict[str, float]:
        """What the model of an offer comes to on what this device holds out."""
        if offer.numbers != len(self._trainer.weights):
            raise FleetError(f"the server offers {offer.numbers} numbers; the task has {len(self._trainer.weights)}")
        self._trainer.load(self._checked(self._models.whole(offer)))
        return named_sums(judged(self._trainer, self._held, "what this device holds out"))

    def _train(self, offer: WorkOffer) -> None:
        assert self._pending
        self._files.write("update.frame", self._frame(offer, self._message(offer)))
        self._note(replace(self._pending, trained=True))

    def _message(self, offer: WorkOffer) -> Message:
        """Train as asked; what comes out is the same whenever it is asked."""
        shared = self._fetch(offer)
        work = Work(
            round=offer.round,
            epochs=offer.epochs,
            batch=offer.batch if offer.batch is not None else inf,
            lr=offer.lr,
            settings=offer.settings,
        )
        states = self._states if self._setup.keeps_state else None
        return run_client(self._setup, self._trainer, self._k, self._trained_on, work, shared, states)

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
        expected = len(self._trainer.weights) * self._setup.algorithm.vectors_down
        if offer.numbers != expected:
            raise FleetError(f"the server offers a model of {offer.numbers} numbers; the task here has {expected}")
        return self._checked(self._models.fetch(offer))

    def _checked(self, data: bytes) -> Tensor:
        """The numbers of a model that came."""
        numbers = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
        if not bool(torch.isfinite(numbers).all()):
            raise FleetError("the model that came holds NaN or infinity")
        return numbers

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
            self._drop_pending(keep_state=False)
            self._say_failed(offer, str(refusal))

    def _say_failed(self, offer: WorkOffer | JudgeOffer, detail: str) -> None:
        report = ReportRequest(
            round=offer.round,
            attempt=offer.attempt,
            kind="failed",
            reason="training-failed",
            detail=printable(detail, 500),
        )
        try:
            self._link.ask(UpdateAnswer, "/v1/report", report)
        except ServerRefused as refusal:
            log.warning("report refused", extra={"reason": refusal.error})

    # What is kept

    def _load_pending(self) -> Pending | None:
        known = self._files.read_json("update.json")
        return Pending(**known) if known is not None else None

    def _note(self, pending: Pending) -> None:
        self._files.write_json("update.json", asdict(pending))
        self._pending = pending

    def _drop_pending(self, keep_state: bool) -> None:
        if self._pending and self._setup.keeps_state:
            if keep_state:
                self._states.settle(self._pending.round)
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


def _own_key(path: Path) -> ClientKey:
    if path.exists():
        return ClientKey.load(path)
    key = ClientKey.generate()
    key.save(path)
    return key


def _base64(data: bytes) -> str:
    from base64 import b64encode

    return b64encode(data).decode()


def _runtime_options() -> list[str]:
    return [spec.name for spec in fields(Plan) if spec.metadata["runtime"]]
