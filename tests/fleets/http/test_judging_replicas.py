"""Devices judge models at whichever replica they ask, and what replicas have of it comes together, whoever dies."""

import pytest
from harness import wait_until
from several import DEVICES, ENDLESS, Replicas, devices_plan, full_plan
from test_judging import found

import fedavg
from fedavg.fleets.http.protocol.messages import JUDGING
from fedavg.fleets.http.server.store import Store
from fedavg.runlog.rundir import RunDir


def test_devices_of_two_replicas_find_what_the_simulator_finds(tmp_path, url):
    plan = devices_plan(rounds=3, holdout=0.3, evaluate="server,clients")
    with Replicas(tmp_path, plan, 2, url) as fleet:
        fleet.check()
        gathered = [line for replica in fleet.replicas for line in replica.lines("gathered")]
        with Store.open(url) as store:
            served = store.committed()
    judged = [line for line in gathered if line["attempt"] >= JUDGING]
    assert [line["replicas"] for line in judged] == [2] * 3, "both have taken sums in each round"
    fedavg.run(plan, tmp_path / "local")
    expected = RunDir(tmp_path / "local").rows()
    assert [row["test"] for row in served] == [row["test"] for row in expected]
    assert [found(row) for row in served] == [found(row) for row in expected]
    assert [row["on_clients"]["clients"] for row in served] == [DEVICES] * 3


@pytest.fixture
def pair(tmp_path, url):
    """Two replicas, and a client at each, led by hand, that takes part in every round."""
    plan = full_plan(rounds=ENDLESS, C=0.25, holdout=0.3, evaluate="clients")
    with Replicas(tmp_path, plan, 2, url, "--min-clients", "2", clients=0) as fleet:
        fleet.enrol(2)
        yield fleet


def trained(fleet, *replicas):
    """Clients 0, 1, ..., each at one of the replicas, whose updates are in."""
    hands, offers = fleet.offers(*replicas)
    for hand, offer in zip(hands, offers, strict=True):
        assert not hand.upload(offer).duplicate
    return hands


def follower(fleet):
    return next(replica for replica in fleet.replicas if replica is not fleet.leader)


def row_of(fleet, round):
    fleet.wait_for_round(round)
    with Store.open(fleet.url) as store:
        assert store.counted(round).clients == {0, 1}
        return store.committed()[round - 1]


def test_a_leader_that_dies_while_devices_judge_loses_only_its_own_part_of_the_sum(pair):
    dying, staying = pair.leader or wait_until(lambda: pair.leader, "a leader"), follower(pair)
    hands = trained(pair, dying, staying)
    offers = [hand.asked_to_judge() for hand in hands]
    assert offers[0].model == offers[1].model
    assert not hands[1].send_sums(offers[1]).duplicate
    dying.kill()
    wait_until(lambda: pair.leader is staying, "the other one to lead")
    mover = pair.hand(staying, 0)

    def counts_again():  # until the dead one is given up, the update is said to be in its sum
        again = mover.offered()
        assert (again.round, again.attempt) == (offers[0].round, offers[0].attempt - JUDGING)
        return not mover.upload(again).duplicate

    assert hands[1].offered_nothing()  # only the client whose update was lost with the leader is asked for it again
    wait_until(counts_again, "the update to be asked for again")
    for hand in (mover, hands[1]):
        offer = hand.asked_to_judge()
        assert (offer.round, offer.model) == (offers[0].round, offers[0].model), "the same model, bit for bit"
        assert not hand.send_sums(offer).duplicate
    assert row_of(pair, offers[0].round)["on_clients"]["clients"] == 2


def test_a_replica_that_dies_with_sums_of_a_model_is_asked_for_nothing_of_the_round(pair):
    wait_until(lambda: pair.leader, "a leader")
    dying, staying = follower(pair), pair.leader
    hands = trained(pair, staying, dying)
    offers = [hand.asked_to_judge() for hand in hands]
    assert not hands[1].send_sums(offers[1]).duplicate
    dying.kill()
    mover = pair.hand(staying, 1)

    def counts_again():  # until the dead one is given up, the sums are said to be there
        return not mover.send_sums(mover.asked_to_judge()).duplicate

    wait_until(counts_again, "the sums to be asked for again")
    assert not hands[0].send_sums(offers[0]).duplicate
    row = row_of(pair, offers[0].round)
    assert row["on_clients"]["clients"] == row["clients"] == 2
