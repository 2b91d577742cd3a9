"""Gates before handlers: in which order a request passes them, and that no endpoint lacks those that it needs."""

import asyncio

import pytest
from starlette.responses import Response

from fedavg.fleets.http.server.app import FleetApp
from fedavg.fleets.http.server.gates import Applying, Call, Gate, OneUpload, Paced, Signed, UploadToken, behind
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.refusals import Refusal
from fedavg.fleets.http.server.store import Store
from fleet_peers import fleet_plan


class Noted(Gate):
    def __init__(self, name, passed, closed=False):
        self._name, self._passed, self._closed = name, passed, closed

    async def __call__(self, call, then):
        self._passed.append(self._name)
        if self._closed:
            raise Refusal("not-invited", self._name)
        return await then(call)


async def handler(_):
    return Response(b"there")


def test_gates_are_passed_from_first_to_last():
    passed = []
    answer = asyncio.run(behind([Noted("a", passed), Noted("b", passed)], handler)(Call(None)))
    assert (passed, answer.body) == (["a", "b"], b"there")


def test_nothing_behind_a_closed_gate_is_reached():
    passed = []
    gates = [Noted("a", passed), Noted("b", passed, closed=True), Noted("c", passed)]
    with pytest.raises(Refusal, match="b"):
        asyncio.run(behind(gates, lambda _: pytest.fail("the handler was called"))(Call(None)))
    assert passed == ["a", "b"]


def test_whatever_changes_something_says_who_it_is_and_is_paced(tmp_path):
    with Store.open(tmp_path / "fleet.db") as store:
        app = FleetApp(fleet_plan(), Hub(Guards()), store)
        endpoints = app._endpoints()
        app.close()
    changing = [endpoint for endpoint in endpoints if endpoint.method != "GET"]
    assert len(changing) == 6
    for endpoint in changing:
        kinds = [type(gate) for gate in endpoint.gates]
        assert {Signed, UploadToken, Applying} & set(kinds), endpoint.path
        if endpoint.method == "PUT":  # nothing large is read of somebody who is unknown or comes too often
            assert kinds.index(Paced) < kinds.index(OneUpload), endpoint.path
