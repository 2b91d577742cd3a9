"""Evaluation by devices over real sockets: the numbers of the simulator, and nothing but sums on the way."""

import doctest
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import Fleet, Hand, serving
from hypothesis import given
from hypothesis import strategies as st
from tiny import FEW, SIZES, few_plan, tiny_plan

import fedavg
from fedavg.fleets.http.device.judge import check_judging
from fedavg.fleets.http.device.policy import Declined, Policy
from fedavg.fleets.http.protocol import sums
from fedavg.fleets.http.protocol.messages import JudgeOffer
from fedavg.runlog.rundir import RunDir
from fedavg.setup import resolve_on_device

CLIENTS = len(FEW)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def found(row):
    """What clients found, without what it cost to hear of it."""
    return {
        name: row["on_clients"][name] for name in ("clients", "metrics", "spread", "worst") if name in row["on_clients"]
    }


def simulated(plan, path):
    fedavg.run(plan, path)
    return RunDir(path).rows()


@pytest.mark.parametrize("options", [{}, {"eval_clients": 3}, {"evaluate": "clients", "eval_every": 2}])
def test_devices_find_what_the_simulator_finds(tmp_path, options):
    plan = few_plan(**{"rounds": 3, "holdout": 0.3, "evaluate": "server,clients", **options})
    with Fleet(tmp_path, plan, CLIENTS) as fleet:
        summary = fleet.finished()
        served = rows(fleet.server.metrics)
    expected = simulated(plan, tmp_path / "local")
    assert [row["test"] for row in served] == [row["test"] for row in expected]
    judged = [row for row in served if row.get("on_clients")]
    assert [found(row) for row in judged] == [found(row) for row in expected if row.get("on_clients")]
    assert len(judged) == (2 if "eval_every" in options else 3)
    assert summary["on_clients"]["clients"] == options.get("eval_clients", CLIENTS)
    assert all(row["on_clients"]["bytes_up"] > 0 for row in judged)


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_a_server_without_a_test_set_serves(tmp_path, holdout):
    """Devices judge if they hold examples out; if not, nobody does, and the run says so."""
    plan = few_plan(rounds=2, data="tiny:BARE", holdout=holdout)
    with Fleet(tmp_path, plan, CLIENTS) as fleet:
        summary = fleet.finished()
        served = rows(fleet.server.metrics)
    fedavg.run(plan, tmp_path / "local")
    expected = RunDir(tmp_path / "local").rows()
    assert [row["test"] for row in served] == [None, None]
    assert [row.get("on_clients", {}).get("metrics") for row in served] == [
        row.get("on_clients", {}).get("metrics") for row in expected
    ]
    assert bool(summary["metrics"]) == bool(holdout)


@pytest.mark.parametrize("secagg", ["none", "complete:8:100"])
def test_what_devices_measure_in_training_is_what_the_simulator_has(tmp_path, secagg):
    """F1 over a cohort, from the sums of its devices; and a run that stops at what they find, not at the server's."""
    plan = few_plan(rounds=3, C=1.0, algorithm="tiny:Judging", secagg=secagg, holdout=0.3,
                    evaluate="server,clients", target="clients.loss=100")  # fmt: skip
    with Fleet(tmp_path, plan, CLIENTS) as fleet:
        summary = fleet.finished()
        (served,) = rows(fleet.server.metrics)
    (expected,) = simulated(plan, tmp_path / "local")
    assert served["metrics"] == expected["metrics"]
    assert 0 < served["metrics"]["f1"] < 1
    assert served["train_loss"] == expected["train_loss"]
    assert (summary["status"], summary["metric"], summary["rounds"]) == ("target reached", "clients.loss", 1)


def test_a_server_refuses_numbers_that_no_header_can_carry(tmp_path):
    from fedavg.errors import PlanError
    from fedavg.fleets.http.protocol.wire import check_names

    check_names(["train_loss", "f1.0"])
    for names in (["Train Loss"], [f"bins.{n}" for n in range(129)]):
        with pytest.raises(PlanError, match="what clients measure cannot be sent: metrics"):
            check_names(names)


def test_under_secure_aggregation_only_the_sum_over_devices_leaves_them(tmp_path):
    plan = few_plan(rounds=2, C=1.0, holdout=0.3, evaluate="clients", secagg="complete:8:100")
    with Fleet(tmp_path, plan, CLIENTS) as fleet:
        fleet.finished()
        served = rows(fleet.server.metrics)
    expected = simulated(plan, tmp_path / "local")
    assert [row["on_clients"]["spread"] for row in served] == [{}, {}]
    assert [found(row) for row in served] == [found(row) for row in expected]


def test_a_server_that_is_killed_while_devices_judge_goes_on_as_if_nothing_had_been(tmp_path):
    plan = tiny_plan(rounds=2, C=1.0, holdout=0.3, evaluate="clients")
    with serving(tmp_path, plan, "--min-clients", "2") as server:
        hands = [Hand(server, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        for hand in hands:
            hand.upload(hand.offered())
        offer = hands[0].asked_to_judge()
        server.kill()
        server.go_on(lambda status: status["round"], "round 1 again")
        assert server.status()["committed"] == 0
        for hand in hands:
            hand.upload(hand.offered())
        again = hands[0].asked_to_judge()
        assert (again.round, again.model) == (offer.round, offer.model)
        for hand in hands:
            assert hand.send_sums(hand.asked_to_judge()).accepted
        server.wait_for(lambda status: status["committed"] == 1, "round 1")
    (row,) = rows(server.metrics)[:1]
    assert row["on_clients"]["clients"] == 2
    assert row["clients"] == 2, "those who trained are counted, not those who judged"


def test_who_does_not_answer_is_left_out(tmp_path):
    plan = tiny_plan(rounds=1, C=1.0, holdout=0.3, evaluate="clients")
    with serving(tmp_path, plan, "--min-clients", "2", "--deadline", "3", "--quorum", "0.5") as server:
        a, b = hands = [Hand(server, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        for hand in hands:
            hand.upload(hand.offered())
        assert a.send_sums(a.asked_to_judge()).accepted
        b.asked_to_judge()
        server.wait_for(lambda status: status["done"], "the end")
    (row,) = rows(server.metrics)
    assert row["on_clients"]["clients"] == 1


def test_an_evaluation_that_nobody_answers_is_left_out_and_the_run_goes_on(tmp_path):
    plan = tiny_plan(rounds=1, C=1.0, holdout=0.3, evaluate="server,clients")
    with serving(tmp_path, plan, "--min-clients", "2", "--deadline", "2") as server:
        hands = [Hand(server, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        for hand in hands:
            hand.upload(hand.offered())
        server.wait_for(lambda status: status["done"], "the end")
    (row,) = rows(server.metrics)
    assert "on_clients" not in row
    assert row["test"]
    assert server.lines("not judged")


# What a device lets itself be asked


def offer(session=None):
    return JudgeOffer(1, 1 << 30, "0" * 64, 27, 9.0, None, session, 2)


def device_setup(plan):
    return resolve_on_device(replace(plan, evaluate="none"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holdout": 0.3, "evaluate": "server"}, "the plan has evaluate 'server'"),
        ({"holdout": 0.0}, "the plan has evaluate 'auto'"),
        ({"holdout": 0.3, "clients": 8, "stages": ("clip:1", "weigh:equal", "noise:1")}, "in a private run"),
        ({"holdout": 0.3, "secagg": "complete:8:100"}, "do not agree on secure aggregation"),
        ({"holdout": 0.01}, "holds no examples out"),
    ],
)
def test_a_device_refuses_what_its_plan_does_not_say(options, message):
    plan = tiny_plan(**options)
    with pytest.raises(Declined, match=message):
        check_judging(Policy(), plan, device_setup(plan), round(plan.holdout * SIZES[0]), offer())


def test_a_device_judges_what_its_plan_says():
    plan = tiny_plan(holdout=0.3, evaluate="server,clients", secagg="complete:8:100")
    check_judging(Policy(), plan, device_setup(plan), 2, offer("0f" * 16))
    with pytest.raises(Declined, match="2 clients are invited; this device requires 3"):
        check_judging(Policy(require_secagg=True, min_cohort=3), plan, device_setup(plan), 2, offer("0f" * 16))


@given(st.lists(st.floats(-1e30, 1e30).filter(lambda v: v == 0 or abs(v) > 1e-20), min_size=1, max_size=9))
def test_sums_lose_nothing_on_the_way(values):
    vector = sums.split(np.array(values))
    assert vector.dtype == torch.float32
    assert sums.joined(vector).tolist() == values


def test_the_example_of_the_sums_is_true():
    assert not doctest.testmod(sums).failed
