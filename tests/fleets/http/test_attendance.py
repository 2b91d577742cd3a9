"""Who took part in a round over HTTP, as it is recorded."""

import torch
from harness import Fleet, Hand, serving
from tiny import FEW, few_plan, tiny_plan

import fedavg
from fedavg.runlog.rundir import RunDir


def cohorts(path):
    return [row["cohort"] for row in RunDir(path).rows()]


def test_a_fleet_records_what_the_simulator_records(tmp_path):
    plan = few_plan(rounds=2)
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        fleet.finished()
        served = cohorts(fleet.server.metrics.parent)
    fedavg.run(plan, tmp_path / "local")
    assert served == cohorts(tmp_path / "local")
    assert served[0]["who"]["outcome"] == ["reported"] * served[0]["asked"]


def test_who_is_late_or_refused_is_recorded_with_the_reason(tmp_path):
    plan = tiny_plan(rounds=1, C=1.0)
    with serving(
        tmp_path, plan, "--min-clients", "3", "--deadline", "4", "--quorum", "0.3", "--norm-bound", "100"
    ) as server:
        good, bad, silent = hands = [Hand(server, k) for k in range(3)]
        for hand in hands:
            hand.poll(0)
        offers = [hand.offered() for hand in hands]
        good.upload(offers[0], torch.ones(offers[0].numbers))
        bad.upload_once(offers[1], torch.full((offers[1].numbers,), 1e6))
        server.wait_for(lambda status: status["done"], "the end")
        (cohort,) = cohorts(server.metrics.parent)
    assert cohort["asked"] == 3
    assert cohort["missing"] == {"refused: norm-exceeded": 1, "late": 1}
    who = cohort["who"]
    assert dict(zip(who["client"], who["outcome"], strict=True)) == {
        good.k: "reported", bad.k: "refused: norm-exceeded", silent.k: "late",
    }  # fmt: skip
    assert who["cosine"] == [1.0, None, None]


def test_an_anonymous_round_names_nobody(tmp_path):
    plan = few_plan(rounds=1)
    with Fleet(tmp_path, plan, len(FEW), "--anonymous") as fleet:
        fleet.finished()
        (cohort,) = cohorts(fleet.server.metrics.parent)
    assert "who" not in cohort
    assert cohort["asked"] == 2


def test_under_secure_aggregation_the_survivors_are_counted(tmp_path):
    plan = few_plan(rounds=1, C=1.0, secagg="complete:8:100")
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        fleet.finished()
        (cohort,) = cohorts(fleet.server.metrics.parent)
    assert (cohort["asked"], cohort["survivors"]) == (len(FEW), len(FEW))
    assert cohort["threshold"] >= 2
    assert "who" not in cohort
