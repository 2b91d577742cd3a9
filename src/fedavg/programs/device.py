"""`Device`: a client on a real device, for use in an app; `fedavg join` is a thin command around it.

The plan comes from the server; code never does. A task, and any other code that the plan names (`allow`), must be
installed on the device, and the device's owner must have named it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import uniform
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final

from fedavg.engine.threads import threads
from fedavg.errors import FedAvgError, FleetError, PlanError
from fedavg.files import locked
from fedavg.fleets.http.device.connection import Connection
from fedavg.fleets.http.device.enrolment import (
    Application,
    Enrolment,
    enrolled,
    forget,
    is_enrolled,
    own_key,
    taken,
)
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.device.models import numbers_of
from fedavg.fleets.http.device.participant import Own, Participant, TakenPart, committed
from fedavg.fleets.http.device.plans import PlanOnDevice, resolve_sent
from fedavg.fleets.http.device.policy import LONGEST_WAIT_S, Declined, Ended, Policy, check_plan
from fedavg.fleets.http.device.reports import report
from fedavg.fleets.http.device.runs import TakenRun, folder_of, known_over, note_over, take_up, told
from fedavg.fleets.http.device.sources import Source, source_of
from fedavg.fleets.http.device.trial import Tasks, sources_of, tasks_of, try_out
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import (
    DoneAnswer,
    Eligibility,
    PlanAnswer,
    PollAnswer,
    PollRequest,
    Settling,
    Taken,
    WaitAnswer,
)
from fedavg.runlog.best import model_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedavg.secagg import Signing

log = logging.getLogger("fedavg.device")

#: Seconds for which `run` lets the server hold a poll open when there is nothing to do; `stop` may take this long.
HELD_S: Final = 25.0
#: Seconds until a device without a run asks again, if the server does not say.
NO_RUN_S: Final = 5.0
#: Refusals which mean that the server does not, or no longer, know this device.
_UNKNOWN: Final = ("bad-signature",)


@dataclass(frozen=True)
class DeviceStep:
    """What a device was asked for at a poll, and did: train, judge a model, mask its update, wait, take up another
    run, or end one.

    `pause_s` is how many seconds to wait before the next step: what the server asked for, or a rest after a failure.
    `over` is true if the run was the last that the server has.
    """

    asked: Literal["work", "judge", "mask", "wait", "plan", "done", "enrol"]
    round: int
    pause_s: float
    over: bool = False


@dataclass(frozen=True)
class TrainedModel:
    """A model that came out of a round, for the device's own use; `final` is true after the last round.

    `tensors` are the module's, by name: `module.load_state_dict(model.tensors)`.
    """

    task: str
    round: int
    final: bool
    sha256: str
    tensors: "dict[str, Tensor]"


@final
class Device:
    """One client of a server. `tasks` are those that its owner allows; `data` are its own examples.

    A service has many runs: the device takes part in those of its tasks, one at a time.

    `tasks` are names of installed tasks (`{"mnist-2nn"}`, `{"my_package.tasks:TASK"}`), or a dict from the names that
    plans use to `Task`s. `data` is an `Examples`, a pair (x, y), a PyTorch dataset, the path of a file or folder, or a
    function that returns any of the first three; with several tasks, a dict by task. It is read before each poll, so
    the data may grow and shrink. `state` is this device's own folder: its key, its number and what it keeps between
    rounds. `token` is the join token, needed the first time.

    `on_round` is called for each round that the device took part in, `on_model` for each model that the server
    publishes: the final one, and with `models="rounds"` that of every round.

    `run` works until the run is over. An app with its own loop calls `step` in it; an app that uses asyncio awaits
    `arun`, which works in a thread. `stop` may be called from any thread.

    >>> import fedavg, numpy as np
    >>> device = fedavg.Device("https://server.example", {"mnist-2nn"}, (np.zeros((5, 784), "f4"), [0, 1, 2, 3, 4]))
    >>> device.stop()  # before it has asked the server for anything
    >>> device.run()
    0
    """

    def __init__(
        self,
        url: str,
        tasks: Tasks,
        data: Any,
        *,
        state: str | Path = "device",
        token: str | None = None,
        name: str = "",
        client: int | None = None,
        allow: Sequence[str] = (),
        connection: Connection | None = None,
        policy: Policy | None = None,
        eligible: Callable[[], Eligibility] = lambda: Eligibility(True, True, True),
        on_round: Callable[[TakenPart], None] = lambda _: None,
        on_model: Callable[[TrainedModel], None] | None = None,
        models: Literal["final", "rounds"] = "final",
        device: str = "cpu",
        threads: int = 1,
        max_epsilon: float | None = None,
        spent: Path | None = None,
        vouched: "Callable[[DeviceFiles, ClientKey], Signing] | None" = None,
        make_link: Callable[[ClientKey], Link] | None = None,
    ) -> None:
        """`vouched` returns the identity that signs in sessions of secure aggregation, if an authority is pinned.

        `device` and `threads` are what PyTorch computes on. On more than one thread, or on another device than the
        CPU, the result may differ in its last bits from that of a simulation.
        """
        if threads < 1:
            raise PlanError(f"threads: got {threads}; expected 1 or more")
        self._url, self._directory = url, Path(state)
        self._tasks = tasks_of(tasks)
        self._sources = sources_of(_sources(data), self._tasks)
        self._token, self._name, self._client, self._allow = token, name, client, tuple(allow)
        self._connection, self._policy, self._eligible = connection or Connection(), policy or Policy(), eligible
        self._on_round, self._on_model, self._models = on_round, on_model, models
        self._device, self._threads = device, threads
        self._max_epsilon, self._spent = max_epsilon, spent or self._directory / "spent.json"
        self._vouched, self._make_link = vouched, make_link
        self._files = DeviceFiles(self._directory)
        self._stop = Event()
        self._open: ExitStack | None = None
        self._link: Link | None = None
        self._signer: Signing | None = None
        self._identity = Enrolment(url, 0, "", "")
        self._participant: Participant | None = None
        #: The run that was offered last, if this device declined it.
        self._declined: Taken | None = None
        #: The run that is known to be over: the device waits for another run, even after a restart.
        self._over: Taken | None = None
        self._last_round, self._model, self._asked_after = 0, "", 0
        if make_link is None:
            self._connection.link(url, ClientKey.generate()).close()  # report a bad address now

    # What an app calls

    def run(self, hold_s: float = HELD_S) -> int:
        """Work until the server says that the run is over, or until `stop`; returns the last round that was over."""
        with closing(self):
            while not self._stop.is_set():
                try:
                    step = self.step(hold_s)
                except Ended:
                    break
                if step.over:
                    break
                self._stop.wait(step.pause_s)
        return self._last_round

    async def arun(self, hold_s: float = HELD_S) -> int:
        """`run` in its own thread. If the task is cancelled, the device stops first: within `hold_s` seconds."""
        running = asyncio.ensure_future(asyncio.to_thread(self.run, hold_s))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise

    def step(self, hold_s: float = 0.0) -> DeviceStep:
        """One poll, which the server may hold open for `hold_s`, and the work it brings. Enrols first if needed."""
        with threads(self._threads):
            link, signer = self._connected()
            try:
                participant = self._taking_part(link, signer)
                answer = participant.poll(hold_s) if participant else self._poll(link, hold_s)
            except ServerRefused as refusal:
                if refusal.error not in _UNKNOWN:
                    raise
                self._enrol_again(refusal)
                return DeviceStep("enrol", 0, 0.0)
            if isinstance(answer, PlanAnswer):
                self._take_up(answer, link, signer)
                return DeviceStep("plan", 0, 0.0)
            if participant is None:
                return DeviceStep("wait", 0, _rest(answer))
            pause_s = participant.answer(answer)
            self._hear(participant, answer)
            over = isinstance(answer, DoneAnswer) and not answer.more
            if isinstance(answer, DoneAnswer) and answer.more:
                self._leave(participant)
        return DeviceStep(_asked(answer), getattr(answer, "round", self._last_round), pause_s, over)

    def stop(self) -> None:
        """Make the current step the last; training ends after its current epoch."""
        self._stop.set()

    def close(self) -> None:
        """Release the connection and the folder. `run` does so by itself, and so does `with`."""
        if self._open is not None:
            self._open.close()
        self._open = self._participant = self._link = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Joining

    def _connected(self) -> tuple[Link, "Signing | None"]:
        """The link to the server, at which this device is then enrolled."""
        if self._link is None:
            examples = None if is_enrolled(self._files) else try_out(self._tasks, self._sources, self._device)
            self._files.prepare()
            with ExitStack() as stack:
                busy = FleetError(f"{self._directory} is in use by another device; expected a separate folder")
                stack.enter_context(locked(self._directory / "lock", busy, private=True))
                key = own_key(self._directory / "key.pem")
                self._signer = self._vouched(self._files, key) if self._vouched else None
                link = self._make_link(key) if self._make_link else self._connection.link(self._url, key, self._pause)
                stack.callback(link.close)
                application = Application(self._token, examples or 0, tuple(self._tasks), self._name, self._client)
                self._identity = enrolled(self._url, link, self._files, application)
                link.signer.client = self._identity.client
                self._over = known_over(self._files)
                self._link, self._open = link, stack.pop_all()
        return self._link, self._signer

    def _taking_part(self, link: Link, signer: "Signing | None") -> Participant | None:
        """The participant in the run that was taken up; None if there is no run, or it was declined."""
        if self._participant is None:
            run = taken(self._files, self._identity)
            if run is not None and run.name not in (self._declined, self._over):
                self._participant = self._join(run, link, signer)
        return self._participant

    def _poll(self, link: Link, hold_s: float) -> PollAnswer:
        """Ask for a run. The request names a declined run, so that it is not offered again."""
        eligible = Eligibility(False, False, False) if self._declined else self._eligible()
        request = PollRequest(eligible=eligible, examples=0, holding=None, run=self._declined, wait_s=hold_s)
        return link.insist(PollAnswer, "/v1/poll", request, hold_s)

    def _take_up(self, answer: PlanAnswer, link: Link, signer: "Signing | None") -> None:
        """Take up another run, or a new plan of the same run; wait until a run that the owner does not want is over."""
        run = told(answer)
        assert run is not None
        self._participant, self._declined = None, None
        self._last_round, self._model, self._asked_after = 0, "", 0
        log.info("another run", extra={"run": run.run, "plan": run.plan_digest})
        try:
            self._participant = self._join(run, link, signer)
        except FedAvgError as error:
            if not isinstance(error, Declined):  # a declined run has been reported already
                report(link, 0, 0, error, "bad-plan")
            self._declined = run.name
        take_up(self._files, run)
        self._end_of(None)

    def _leave(self, participant: Participant) -> None:
        """The run is over and its model was fetched: from now on the device asks for another run."""
        self._participant = None
        self._end_of(participant.run)

    def _end_of(self, run: Taken | None) -> None:
        self._over = run
        note_over(self._files, run)

    def _join(self, run: TakenRun, link: Link, signer: "Signing | None") -> Participant:
        agreed = self._agreed(run, link, signer)
        own = Own(
            link,
            self._files,
            folder_of(self._directory, run.run),
            self._sources[str(agreed.sent.task)],
            self._eligible,
            self._policy,
            signer,
            self._max_epsilon,
            self._spent,
            self._on_round,
            self._stop.is_set,
        )
        return Participant(agreed, self._identity.client, run.name, own)

    def _agreed(self, run: TakenRun, link: Link, signer: "Signing | None") -> PlanOnDevice:
        """The plan, if this device's owner agrees to it; if not, the server is told why before the error is raised."""
        try:
            agreed = resolve_sent(run, self._tasks, self._allow, self._device)
            self._sources[str(agreed.sent.task)].check(agreed.sent)
            check_plan(self._policy, agreed.setup, signer is not None)
        except Declined as error:
            report(link, 0, 0, error, "bad-plan")
            raise
        return agreed

    def _enrol_again(self, refusal: ServerRefused) -> None:
        """The server has lost its database, or is another one at the same address."""
        if self._token is None:
            raise FleetError(
                f"{self._url} does not know this device's signature ({refusal}); expected a join token, to enrol again"
            ) from None
        log.warning("not known to the server; enrolling again")
        forget(self._files)
        self.close()

    # Models

    def _hear(self, participant: Participant, answer: PollAnswer) -> None:
        """Note how far the run is, and fetch its model if that is wanted."""
        done = isinstance(answer, DoneAnswer)
        if not isinstance(answer, Settling):
            return
        self._last_round = max(self._last_round, committed(answer))
        if done:
            log.info("the run is over", extra={"round": self._last_round})
        wanted = done or (self._models == "rounds" and self._last_round > self._asked_after)
        if self._on_model is None or not wanted:
            return
        self._asked_after = self._last_round
        over = participant.final_model(answer) if isinstance(answer, DoneAnswer) else None
        latest = over if done else participant.latest_model(self._model)
        if latest is None:
            return
        self._model = latest.sha256
        tensors = model_of(participant.setup, numbers_of(latest.data)).module.state_dict()
        self._on_model(TrainedModel(participant.task, latest.round, done, latest.sha256, tensors))

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Ended("this device was stopped")


def _sources(data: Any) -> Mapping[str, Source] | Source:
    if isinstance(data, Mapping):
        return {name: source_of(each) for name, each in data.items()}
    return source_of(data)


def _rest(answer: PollAnswer) -> float:
    """Seconds until the next poll of a device without a run."""
    wait_s = answer.retry_after_s if isinstance(answer, WaitAnswer) else NO_RUN_S
    return min(wait_s, LONGEST_WAIT_S) * uniform(0.9, 1.1)


def _asked(answer: PollAnswer) -> Literal["work", "judge", "mask", "wait", "done"]:
    kind: Literal["work", "judge", "mask", "wait", "done"] = answer.type  # type: ignore[attr-defined]
    return kind
