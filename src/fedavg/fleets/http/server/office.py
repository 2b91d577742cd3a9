"""What operators ask of a service's runs: submit, list, pause, cancel, extend."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from fedavg.errors import FedAvgError
from fedavg.fleets.http.protocol.messages import Extension, NewRun
from fedavg.fleets.http.server.bodies import parse_body, read_body
from fedavg.fleets.http.server.gates import Call, Endpoint, Gate, SmallBody, path_number
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.store import StoreError, SubmittedRun

#: Bytes of a submission: a plan of 16,384 characters, as JSON.
SUBMISSION_BYTES: Final = 96 * 1024


class NoSuchRun(FedAvgError):
    """The service has no run of that number."""


class Office(ABC):
    """The runs of a service. Every call may take its time, and is made in a thread."""

    @abstractmethod
    def submit(self, order: NewRun, by: str) -> int:
        """Put a run in the queue; returns its number. What can not be served is refused at once."""

    @abstractmethod
    def model_bytes(self, number: int) -> int:
        """How many bytes the model that a run waits for may have."""

    @abstractmethod
    def give_model(self, number: int, content: bytes) -> None:
        """The model that a run starts from, safetensors."""

    @abstractmethod
    def runs(self) -> Sequence[tuple[SubmittedRun, int | None]]:
        """All runs, each with its last committed round if that is known."""

    @abstractmethod
    def pause(self, number: int) -> None: ...

    @abstractmethod
    def go_on(self, number: int) -> None:
        """Put a run that is paused, or has failed, back into the queue."""

    @abstractmethod
    def cancel(self, number: int) -> None: ...

    @abstractmethod
    def extend(self, number: int, extension: Extension, by: str) -> None: ...


class RunEndpoints:
    """The endpoints of an office, behind the gate of those who may use it."""

    def __init__(self, office: Office, answered: Gate, operator: Gate, blocking: Callable[..., Awaitable[Any]]) -> None:
        self._office, self._blocking = office, blocking
        plan, small = SmallBody(SUBMISSION_BYTES), SmallBody()
        endpoints = [
            Endpoint("GET", "/admin/runs", self._runs, [operator]),
            Endpoint("POST", "/admin/runs", self._submit, [operator, plan]),
            Endpoint("PUT", "/admin/runs/{run}/model", self._model, [operator]),
            Endpoint("POST", "/admin/runs/{run}/pause", partial(self._change, office.pause), [operator]),
            Endpoint("POST", "/admin/runs/{run}/go-on", partial(self._change, office.go_on), [operator]),
            Endpoint("POST", "/admin/runs/{run}/cancel", partial(self._change, office.cancel), [operator]),
            Endpoint("POST", "/admin/runs/{run}/extend", self._extend, [operator, small]),
        ]
        self.routes: list[BaseRoute] = [endpoint.route(answered) for endpoint in endpoints]

    async def _asked(self, call: Callable[..., Any], *arguments: object) -> Any:
        """What an office refuses is the operator's to mend: it becomes an answer."""
        try:
            return await self._blocking(call, *arguments)
        except NoSuchRun as error:
            raise Refusal("no-such-run", str(error)) from None
        except StoreError:
            raise
        except FedAvgError as error:
            raise Refusal("run-refused", str(error)) from None

    async def _runs(self, _: Call) -> Response:
        found = await self._asked(self._office.runs)
        return JSONResponse({"runs": [_shown(run, committed) for run, committed in found]})

    async def _submit(self, call: Call) -> Response:
        order = parse_body(NewRun, call.body)
        return JSONResponse({"run": await self._asked(self._office.submit, order, call.role)})

    async def _model(self, call: Call) -> Response:
        number = path_number(call.request, "run")
        limit = await self._asked(self._office.model_bytes, number)
        await self._asked(self._office.give_model, number, await read_body(call.request, limit))
        return JSONResponse({"run": number})

    async def _change(self, change: Callable[[int], None], call: Call) -> Response:
        number = path_number(call.request, "run")
        await self._asked(change, number)
        return JSONResponse({"run": number})

    async def _extend(self, call: Call) -> Response:
        number, extension = path_number(call.request, "run"), parse_body(Extension, call.body)
        await self._asked(self._office.extend, number, extension, call.role)
        return JSONResponse({"run": number})


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
