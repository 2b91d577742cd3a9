"""What operators can do with a service's runs: submit, list, pause, cancel, extend, roll back."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from fedavg.errors import FedAvgError
from fedavg.fleets.http.protocol.messages import SUBMIT, Extension, NewRun, Rollback
from fedavg.fleets.http.server.bodies import parse_body, read_body
from fedavg.fleets.http.server.gates import Call, Endpoint, Gate, SmallBody, path_number
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.roles import SUBMITTERS, VIEWERS, Keyring, OfRole
from fedavg.fleets.http.server.store import Change, StoreError, SubmittedRun

log = logging.getLogger("fedavg.fleet")

#: Bytes of a submission: a plan of 16,384 characters, as JSON.
SUBMISSION_BYTES: Final = 96 * 1024


class NoSuchRun(FedAvgError):
    """The service has no run with that number."""


@dataclass(frozen=True)
class RunLedger:
    """The privacy cost of each committed round of a run, and the changes that operators made to the run."""

    spent: Sequence[dict[str, object]]
    changes: Sequence[Change]


class Office(ABC):
    """The runs of a service. Every call may be slow, and is made in a thread."""

    @abstractmethod
    def submit(self, order: NewRun, by: str) -> int:
        """Put a run in the queue; returns its number. A run that cannot be served is refused at once."""

    @abstractmethod
    def model_bytes(self, number: int) -> int:
        """The most bytes that the model a run waits for may have."""

    @abstractmethod
    def give_model(self, number: int, content: bytes) -> None:
        """Supply the model that a run starts from, as safetensors."""

    @abstractmethod
    def runs(self) -> Sequence[tuple[SubmittedRun, int | None]]:
        """All runs, each with its last committed round if known."""

    @abstractmethod
    def pause(self, number: int) -> None: ...

    @abstractmethod
    def go_on(self, number: int) -> None:
        """Put a paused or failed run back into the queue."""

    @abstractmethod
    def cancel(self, number: int) -> None: ...

    @abstractmethod
    def extend(self, number: int, extension: Extension, by: str) -> None: ...

    @abstractmethod
    def roll_back(self, number: int, wanted: Rollback, by: str) -> None:
        """Undo the rounds of an idle run after a given one; the privacy that they spent stays spent."""

    @abstractmethod
    def ledger(self, number: int) -> RunLedger: ...


class RunEndpoints:
    """The endpoints of an office, behind the gate that checks roles."""

    def __init__(
        self, office: Office, answered: Gate, keyring: Keyring, blocking: Callable[..., Awaitable[Any]]
    ) -> None:
        self._office, self._blocking = office, blocking
        plan, small = SmallBody(SUBMISSION_BYTES), SmallBody()
        viewer, submitter = OfRole(keyring, VIEWERS), OfRole(keyring, SUBMITTERS)
        endpoints = [
            Endpoint("GET", "/admin/runs", self._runs, [viewer]),
            Endpoint("POST", "/admin/runs", self._submit, [submitter, plan]),
            Endpoint("PUT", "/admin/runs/{run}/model", self._model, [submitter]),
            Endpoint("POST", "/admin/runs/{run}/pause", partial(self._change, office.pause), [submitter]),
            Endpoint("POST", "/admin/runs/{run}/go-on", partial(self._change, office.go_on), [submitter]),
            Endpoint("POST", "/admin/runs/{run}/cancel", partial(self._change, office.cancel), [submitter]),
            Endpoint("POST", "/admin/runs/{run}/extend", self._extend, [submitter, small]),
            Endpoint("POST", "/admin/runs/{run}/rollback", self._roll_back, [submitter, small]),
            Endpoint("GET", "/admin/runs/{run}/ledger", self._ledger, [viewer]),
        ]
        self.routes: list[BaseRoute] = [endpoint.route(answered) for endpoint in endpoints]

    async def _asked(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call the office; what it refuses becomes an answer, since the operator can fix it."""
        try:
            return await self._blocking(call, *arguments)
        except NoSuchRun as error:
            raise Refusal("no-such-run", str(error)) from None
        except StoreError:
            raise
        except FedAvgError as error:
            raise Refusal("run-refused", str(error)) from None

    async def _own(self, call: Call) -> int:
        """The run that a request is about; a submitter may change only its own runs."""
        number = path_number(call.request, "run")
        if call.role == SUBMIT:
            of_others = [run for run, _ in await self._asked(self._office.runs) if run.by != call.who]
            if number in {run.number for run in of_others}:
                raise Refusal("wrong-role", f"run {number} is not of '{call.who}'; its submitter or an operator may")
        return number

    async def _runs(self, _: Call) -> Response:
        found = await self._asked(self._office.runs)
        return JSONResponse({"runs": [_shown(run, committed) for run, committed in found]})

    async def _submit(self, call: Call) -> Response:
        order = parse_body(NewRun, call.body)
        number = await self._asked(self._office.submit, order, call.who)
        return JSONResponse({"run": number})

    async def _model(self, call: Call) -> Response:
        number = await self._own(call)
        limit = await self._asked(self._office.model_bytes, number)
        await self._asked(self._office.give_model, number, await read_body(call.request, limit))
        return JSONResponse({"run": number})

    async def _change(self, change: Callable[[int], None], call: Call) -> Response:
        number = await self._own(call)
        await self._asked(change, number)
        log.info("run changed", extra={"run": number, "change": change.__name__, "by": call.who})
        return JSONResponse({"run": number})

    async def _extend(self, call: Call) -> Response:
        number, extension = await self._own(call), parse_body(Extension, call.body)
        await self._asked(self._office.extend, number, extension, call.who)
        return JSONResponse({"run": number})

    async def _roll_back(self, call: Call) -> Response:
        number, wanted = await self._own(call), parse_body(Rollback, call.body)
        await self._asked(self._office.roll_back, number, wanted, call.who)
        return JSONResponse({"run": number})

    async def _ledger(self, call: Call) -> Response:
        found = await self._asked(self._office.ledger, path_number(call.request, "run"))
        changes = [asdict(change) for change in found.changes]
        return JSONResponse({"ledger": list(found.spent), "changes": changes})


def _shown(run: SubmittedRun, committed: int | None) -> dict[str, object]:
    return {
        "run": run.number,
        "name": run.name,
        "state": run.state,
        "detail": run.detail,
        "committed": committed,
        "plan_digest": run.plan_digest,
        "submitted": run.submitted,
        "by": run.by,
        "changes": list(run.changes),
        "init": run.init_sha256,
    }
