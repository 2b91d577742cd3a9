"""Whole runs in a simulated world: the same bits where the world changes nothing, exact resumes, true accounting."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import fedavg
from fedavg import ArrayData, seeds
from fedavg.engine.model import model_sha256
from fedavg.errors import FleetError, PlanError, RunDirError
from fedavg.server import Round, train
from fedavg.world import Alike, Always, Devices, Rates
from toys import toy_data, toy_plan

#: A world in which all goes wrong: clients come and go, fail, are slow, and rounds are cut off.
ROUGH = {
    "world": "markov:0.02:0.02:lognormal:speed=2.0:up=0.001:dropout=0.2",
    "closing": "deadline:25:over=1.5:minimum=0.4:needs=0.5",
}
EQUAL = toy_data((8, 8, 8, 8, 8, 8))


@dataclass(frozen=True)
class Halves(Devices):
    def rates(self, clients, rng):
        speed = np.where(np.arange(clients) < 3, 0.1, 10.0)
        return Rates(speed, np.full(clients, 1e6), np.full(clients, 1e6), np.zeros(clients))


@dataclass(frozen=True)
class Own(Always):
    devices: Devices = field(default_factory=Halves)


def rounds(plan, **options):
    return [event for event in train(plan, **options) if isinstance(event, Round)]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedadam"])
def test_a_world_where_all_are_there_and_alike_gives_the_bits_of_a_run_without_one(algorithm):
    plan = toy_plan(algorithm=algorithm)
    plain, timed = rounds(plan), rounds(replace(plan, world="always"))
    assert torch.equal(plain[-1].state.weights, timed[-1].state.weights)
    for before, after in zip(plain, timed, strict=True):
        names = ("clients", "examples", "train_loss", "bytes_up", "bytes_down", "test")
        assert [getattr(before, name) for name in names] == [getattr(after, name) for name in names]


def test_a_round_takes_as_long_as_its_slowest_client():
    """Three of five clients with data, E = 2: 2 n_k / 10 s, and 195 float32 numbers at 100 B/s down and 50 B/s up."""
    world = Always(Alike(speed=10, up=50e-6, down=100e-6, latency=0.5))
    first = rounds(toy_plan(world=world, rounds=1))[0]
    sizes = toy_data().sizes
    cohort = seeds.rng(0, 1, seeds.NONE, "cohort").choice(np.flatnonzero(sizes), 3, replace=False)
    message = 4 * 195
    expected = 0.5 + message / 100 + 2 * sizes[cohort].max() / 10 + 0.5 + message / 50
    assert first.simulated_s == pytest.approx(expected)
    assert first.world["closed_s"] == pytest.approx(expected)
    assert (first.world["asked"], first.world["reported"], first.world["wasted_s"]) == (3, 3, 0.0)
    spent = sum(expected - 2 * (sizes[cohort].max() - n) / 10 for n in sizes[cohort])
    assert first.world["spent_s"] == pytest.approx(spent)


@pytest.mark.parametrize("more", [{}, {"algorithm": "fedbuff:2", "closing": "all"}, {"sampling": "oort"}])
def test_the_number_of_workers_changes_nothing(more):
    plan = toy_plan(**{**ROUGH, "rounds": 6, **more})
    one, three = (rounds(replace(plan, workers=workers)) for workers in (1, 3))
    assert torch.equal(one[-1].state.weights, three[-1].state.weights)
    assert [event.world for event in one] == [event.world for event in three]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm": "scaffold", "sampling": "corrected"},
        {"algorithm": "fedbuff:2", "closing": "all"},
        {"sampling": "oort", "world": "diurnal:2:hours=11:devices=lognormal:speed=0.1", "closing": "all"},
    ],
)
def test_a_run_that_is_stopped_and_resumed_goes_on_exactly(tmp_path, more):
    plan = toy_plan(**{**ROUGH, "rounds": 8, "checkpoint_s": 0, **more})
    whole = rounds(plan)

    def stop(event):
        if event.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedavg.run(plan, tmp_path / "run", stop)
    later = []
    got = fedavg.resume(tmp_path / "run", later.append, task=plan.task, data=toy_data())
    assert [event.world for event in later[1:]] == [event.world for event in whole[4:]]
    assert got.summary.model_sha256 == model_sha256(whole[-1].state.weights)


def test_what_goes_wrong_is_recorded():
    rows = [event.world for event in rounds(toy_plan(**ROUGH, rounds=15))]
    assert sum(row["dropped"] for row in rows) > 0
    assert sum(row["late"] for row in rows) > 0
    assert any(row.get("abandoned") for row in rows)
    for before, after in pairwise(rows):
        assert after["began_s"] == pytest.approx(before["closed_s"])
        assert after["began_s"] <= after["opened_s"] <= after["closed_s"]
    for row in rows:
        assert row["asked"] == row["reported"] + row["late"] + row["dropped"]
        assert 0 <= row["wasted_s"] <= row["spent_s"]
        assert sum(group[1] for group in row["groups"].values()) == row["asked"]
        assert row["reported"] <= 3


def test_wasted_bytes_are_counted():
    """Four are asked, three count: the fourth, which ends at the same time, has sent all its bytes for nothing."""
    plan = toy_plan(data=EQUAL, world="always", closing="all:1.34", rounds=1)
    first, message = rounds(plan)[0], 4 * 195
    assert (first.clients, first.world["asked"], first.world["late"]) == (3, 5, 2)
    assert first.bytes_up == 5 * message == 3 * message + first.world["wasted_up"]
    assert first.bytes_down == 5 * message


def test_who_does_not_count_is_not_in_the_sum():
    """Clients 0 to 2 are slow: with a quorum of half, only the fast half of six is averaged."""
    plan = toy_plan(data=EQUAL, C=1.0, world=Own(), closing="quorum:0.5", rounds=1)
    parts = [np.arange(0)] * 3 + [np.arange(8 * k, 8 * k + 8) for k in (3, 4, 5)]
    fast = ArrayData("fast", EQUAL._all.x, EQUAL._all.y, parts, EQUAL.test)
    expected = rounds(toy_plan(data=fast, C=1.0, rounds=1))[0]
    assert torch.equal(rounds(plan)[0].state.weights, expected.state.weights)


def test_fedbuff_is_fedavg_where_all_take_as_long():
    """All alike, a buffer as large as the cohort, nobody stale: the same bits."""
    plan = toy_plan(data=EQUAL, rounds=4)
    plain, buffered = rounds(plan), rounds(replace(plan, algorithm="fedbuff:3", world="always"))
    assert torch.equal(plain[-1].state.weights, buffered[-1].state.weights)
    assert buffered[-1].world["staleness"] == {"mean": 0.0, "max": 0.0}
    assert buffered[-1].world["closed_s"] == pytest.approx(4 * buffered[0].world["closed_s"])


def test_fedbuff_does_not_wait_for_slow_clients():
    """Three clients of 160 s and three of 1.6 s; two at a time, a buffer of one: a step takes 1.6 s, now and then."""
    plan = toy_plan(data=EQUAL, C=0.34, world=Own(), rounds=30)
    together = rounds(plan)[-1].world["closed_s"]
    alone = rounds(replace(plan, algorithm="fedbuff:1"))
    assert alone[-1].world["closed_s"] < 0.6 * together
    assert max(event.world["staleness"]["max"] for event in alone) >= 1


def test_nights_decide_who_takes_part():
    """Two zones with 11 hours each: while one sleeps, nobody of it is asked."""
    plan = toy_plan(data=EQUAL, C=0.34, world="diurnal:2:hours=11:spread=0:devices=alike:speed=0.01", rounds=40)
    for event in rounds(plan):
        counts = event.world["groups"]
        hour = (event.world["opened_s"] + 1) / 3600 % 24
        asleep = "0" if (hour + 12) % 24 >= 22 or (hour + 12) % 24 < 9 else "1"
        assert counts[asleep][0] == counts[asleep][2] == 0
        assert counts[asleep][1] == 0 or event.world["abandoned"]


def test_a_run_by_a_trace_is_resumed_and_refused_once_the_trace_has_changed(tmp_path):
    trace = tmp_path / "t.jsonl"
    line = '{{"client": {k}, "from": 0, "to": {to}}}\n'
    trace.write_text("".join(line.format(k=k, to=1000) for k in range(6)))
    plan = toy_plan(world=f"trace:{trace}", rounds=2)
    fedavg.run(plan, tmp_path / "run")
    longer = fedavg.resume(tmp_path / "run", task=plan.task, data=toy_data(), rounds=3)
    whole = fedavg.run(replace(plan, rounds=3))
    assert longer.summary.model_sha256 == whole.summary.model_sha256
    trace.write_text("".join(line.format(k=k, to=2000) for k in range(6)))
    with pytest.raises(RunDirError, match="world: .* was started with another one: content was"):
        fedavg.resume(tmp_path / "run", task=plan.task, data=toy_data(), rounds=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"closing": "deadline:5"}, "closing: got 'deadline:5' without a world"),
        ({"sampling": "corrected"}, "sampling: got 'corrected', which looks back at earlier rounds; expected a world"),
        ({"world": "always", "uplink": 2}, "uplink 2, which has no effect; set it by the world's devices"),
        ({"world": "always", "downlink": "stc:0.1"}, "downlink 'stc:0.1', whose messages the clock cannot time"),
        ({"world": "always", "codec": "stc:0.1"}, "codec 'stc:0.1', whose frames have no fixed length"),
        ({"world": "always", "secagg": "complete:1.0:100"}, "secagg .* whose messages the clock cannot time"),
        ({"world": "always", "algorithm": "sgd", "E": 1}, "algorithm 'sgd', which has one client that is no device"),
        ({"world": "always", "algorithm": "fedbuff", "closing": "quorum"}, "whose rounds end when its buffer is full"),
        ({"world": "always:alike:server_in=1", "algorithm": "fedbuff"}, "shared only by clients that start together"),
        ({"world": "always", "algorithm": "fedbuff:spread=0.5"}, "spread=0.5 in a world, whose devices say how long"),
        ({"world": "diurnal:7"}, "7 zones for 6 clients leave a zone without any"),
        (
            {"world": "always", "stages": ["clip:1.0", "weigh:equal", "noise:1.0"]},
            "who is there is not drawn at random",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_round_1(options, message):
    with pytest.raises(PlanError, match=message):
        next(iter(train(toy_plan(**options))))


def test_a_world_in_which_no_round_can_begin_is_refused_before_round_1():
    plan = toy_plan(data=EQUAL, C=1.0, world="diurnal:2:hours=4:spread=0")
    with pytest.raises(FleetError, match="a round needs 6; expected as many at one time"):
        next(iter(train(plan)))


def test_rounds_that_never_come_together_end_the_run():
    plan = toy_plan(world="always:alike:speed=0.001", closing="deadline:1")
    with pytest.raises(FleetError, match="round 1 was abandoned 50 times, .* use a later deadline, a lower minimum"):
        rounds(plan)


def test_a_fleet_that_does_not_simulate_refuses_a_world():
    class Real(fedavg.LocalFleet):
        simulates = False

    with pytest.raises(PlanError, match="clients of Real are not simulated"):
        next(iter(train(toy_plan(world="always"), Real())))
