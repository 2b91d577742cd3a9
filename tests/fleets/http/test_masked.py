"""Secure aggregation over the network with clients that vanish, and a server that is killed in a session."""

import json

import numpy as np
import pytest
from harness import Fleet
from tiny import FEW, few_plan, tiny_plan

import fedavg
from fedavg.errors import PlanError
from fedavg.fleets.http.server.secure import implausible
from fedavg.secagg.ring import DecodedSum, Encoding

PLAN = {"rounds": 3, "C": 1.0, "secagg": "complete:4:20"}


def rows(fleet):
    return [json.loads(line) for line in fleet.server.metrics.read_text().splitlines()]


def test_a_client_that_vanishes_is_left_out_of_the_sum(tmp_path):
    """A phase that it does not answer ends at its deadline; the others' masks are taken off without it."""
    with Fleet(tmp_path, few_plan(**PLAN), len(FEW), "--deadline", "8") as fleet:
        fleet.server.wait_for(lambda status: status["committed"] >= 1, "round 1")
        fleet.devices[2].kill()
        summary = fleet.finished()
        counted = [row["clients"] for row in rows(fleet)]
        with fleet.database() as store:
            last = store.counted(3).clients
    assert summary["rounds"] == 3
    assert counted[0] == 4
    assert counted[-1] == 3
    assert last == {0, 1, 3}


def test_a_server_killed_in_a_session_begins_another_with_the_same_clients(tmp_path):
    plan = few_plan(**{**PLAN, "rounds": 20})
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        for committed in (2, 6, 10):
            fleet.server.wait_for(lambda status, least=committed: status["committed"] >= least, "rounds")
            fleet.server.kill()
            fleet.server.start()
        summary = fleet.finished()
        reasons = [line["reason"] for line in fleet.server.lines("abandoned")]
    assert summary["model_sha256"] == fedavg.run(plan).summary.model_sha256
    assert set(reasons) <= {"the server was started again"}


def test_a_plan_that_the_ring_can_not_hold_is_refused_before_round_1():
    with pytest.raises(PlanError, match="secagg with 1 clients a round"):
        next(fedavg.train(tiny_plan(rounds=1, C=0, secagg="complete:4:20")))


@pytest.mark.parametrize(("capped", "believed"), [(0, True), (2, True), (3, False), (-1, False)])
def test_a_sum_with_more_capped_weights_than_clients_is_not_believed(capped, believed):
    encoding = Encoding(4, 1, clip=1.0, weight_cap=10)
    decoded = DecodedSum(np.zeros(1), weight=20, metrics={}, count=2, saturated=0, capped=capped)
    reason = implausible(decoded, encoding, [30, 30], {})
    assert reason is None if believed else reason and f"{capped} weights are said to be capped" in reason
