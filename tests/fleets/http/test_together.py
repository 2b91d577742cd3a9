"""What replicas share in a real PostgreSQL: counters, claims, and who may still write as the leader."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep

import pytest
import torch
from harness import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres import OTHERS, administer, emptied

from fedavg.codecs import make_codec
from fedavg.errors import FleetError
from fedavg.fleets.attendance import Seen
from fedavg.fleets.http.protocol.keys import ReplayGuard, SignatureRefused
from fedavg.fleets.http.protocol.messages import WorkOffer
from fedavg.fleets.http.protocol.wire import Expected
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.metrics import Requests
from fedavg.fleets.http.server.replicas.leader import Leader
from fedavg.fleets.http.server.replicas.member import Member, SharedClaims
from fedavg.fleets.http.server.replicas.parts import PartOfGroup, dump_parts, joined, parse_parts
from fedavg.fleets.http.server.replicas.peers import Peers
from fedavg.fleets.http.server.rounds import OpenRound, Receipt, RoundPhase
from fedavg.fleets.http.server.store import Deposed, Store, StoreError
from fedavg.fleets.http.server.store.heartbeats import Heartbeats
from fedavg.fleets.http.server.store.leadership import Leadership
from fedavg.fleets.http.server.store.together import ReplicaRow, Together
from fedavg.fleets.http.server.underway import Group, Received
from fedavg.types import Update

A, B = 11, 22


@contextmanager
def sharing(url):
    with Store.open(url) as store:
        yield store, Together(store.connections)


@pytest.fixture
def together(url):
    """Two replicas, and round 1 open for two updates."""
    with sharing(url) as (store, together):
        for replica in (A, B):
            together.join(ReplicaRow(replica, "http://127.0.0.1:1", b"k" * 32, None))
        store.begin_round(1, 0, [0, 1, 2], "m")
        together.open(1, 0, 2, 35.0)
        yield together


# Counters


@given(counters=st.lists(st.integers(1, 200), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_counters_in_the_database_are_taken_as_those_in_memory_are(shared_counters, counters):
    together, client = shared_counters
    client[0] += 1
    guard, epoch = ReplayGuard("e"), together.epoch()
    for counter in counters:
        assert _taken(lambda: together.use(client[0], epoch, counter)) == _taken(lambda: guard.check(0, counter))  # noqa: B023


def _taken(use):
    try:
        use()
    except SignatureRefused as refused:
        return refused.reason, refused.highest
    return "taken"


@pytest.fixture(scope="module")
def shared_counters(postgres):
    with sharing(emptied(postgres)) as (_, together):
        yield together, [0]


def test_a_counter_that_many_replicas_see_at_once_is_taken_by_one(url):
    with sharing(url) as (_, together), ThreadPoolExecutor(8) as pool:
        epoch = together.epoch()
        for counter in range(1, 6):
            taken = list(pool.map(lambda _: _taken(lambda: together.use(3, epoch, counter)), range(8)))  # noqa: B023
            assert taken.count("taken") == 1


def test_a_request_for_another_epoch_uses_no_counter_up(together):
    with pytest.raises(SignatureRefused) as refused:
        together.use(3, "another", 1)
    assert refused.value.reason == "stale-epoch"
    together.use(3, together.epoch(), 1)


# Claims


def test_an_update_is_claimed_once_whoever_asks(together):
    assert together.claim(A, 1, 0, 7) is Receipt.ACCEPTED
    assert [together.claim(replica, 1, 0, 7) for replica in (A, B)] == [Receipt.DUPLICATE] * 2
    assert together.claim(B, 1, 1, 7) is Receipt.WRONG_ROUND


def test_no_more_are_claimed_than_are_wanted_nor_after_the_seal(together):
    assert together.claim(A, 1, 0, 0) is Receipt.ACCEPTED
    assert together.seal(1, 0) == {0: A}
    assert together.claim(B, 1, 0, 1) is Receipt.ROUND_CLOSED
    together.open(1, 0, 2, 99.0)  # a new leader goes on with the same attempt, and its first cap
    assert together.view(A, 0).cap == 35.0
    assert together.claim(B, 1, 0, 1) is Receipt.ACCEPTED
    assert together.claim(B, 1, 0, 2) is Receipt.ROUND_CLOSED
    together.release(B, 1, 0, 1)
    assert together.claim(A, 1, 0, 2) is Receipt.ACCEPTED
    assert together.view(A, 0).claims == {0: A, 2: A}


def test_what_a_replica_had_that_is_given_up_can_be_claimed_again(together):
    together.claim(A, 1, 0, 0)
    together.claim(B, 1, 0, 1)
    together.give_up([A])
    assert together.view(B, 0).claims == {1: B}
    assert not together.head(A).member
    with pytest.raises(StoreError, match="it joins anew") as refused:
        together.claim(A, 1, 0, 2)
    assert refused.value.retryable
    assert together.claim(B, 1, 0, 0) is Receipt.ACCEPTED


def test_who_failed_may_still_send_and_who_sent_has_not_failed(together):
    together.fail(1, 0, 0, "out-of-time")
    together.claim(A, 1, 0, 1)
    together.fail(1, 0, 1, "update-refused")
    view = together.view(A, 0)
    assert (view.claims, view.failed) == ({1: A}, {0: "out-of-time"})
    assert together.claim(B, 1, 0, 0) is Receipt.ACCEPTED
    assert together.view(A, 0).failed == {}


def test_many_claims_at_once_are_one_each_and_no_more_than_wanted(together):
    with ThreadPoolExecutor(8) as pool:
        pairs = [(replica, k) for k in range(3) for replica in (A, B, A, B)]
        verdicts = list(pool.map(lambda pair: together.claim(pair[0], 1, 0, pair[1]), pairs))
    assert verdicts.count(Receipt.ACCEPTED) == 2
    assert len(together.view(A, 0).claims) == 2


def test_replicas_hear_of_what_changes(together, url):
    version = together.head(A).version
    with Store.open(url) as store:
        Together(store.connections)
        store.add_token(b"t" * 32, None, "", None)
        store.enrol(b"t" * 32, b"a" * 32, 9, "", None)
        store.enrol(b"t" * 32, b"b" * 32, 9, "", None)
        assert together.head(A).version > version
        view = together.view(A, 0)
        assert ([row.k for row in view.clients], view.changed) == ([0, 1], 2)
        store.revoke([0])
    assert [(row.k, row.revoked) for row in together.view(A, view.changed).clients] == [(0, True)]


# Leading


def test_a_leader_that_was_paused_can_write_nothing_any_more(postgres, url):
    with sharing(url) as (old, shared), sharing(url) as (new, _):
        first, second = Leadership(old.connections, "first"), Leadership(new.connections, "second")
        assert (first.attempt(A), second.attempt(B)) == (1, None)
        old.begin_round(1, 0, [0, 1], "m")
        wait_until(lambda: second.attempt(B) == 2, "the silent leader to lose the lock")  # nothing keeps its session
        refused = {
            "commit round 1": lambda: old.commit_round(1, 0, b"state", "m", {}, [0]),
            "abandon round 1": lambda: old.abandon_round(1, 0, "late"),
            "seal round 1": lambda: shared.seal(1, 0),
            "give replicas up": lambda: shared.give_up([B]),
        }
        for doing, write in refused.items():
            with pytest.raises(Deposed, match=doing):
                write()
        assert not first.holds()
        new.commit_round(1, 0, b"state", "m", {"round": 1}, [0])
        assert old.last_round() == 1
        for leadership in (first, second):
            leadership.close()


@pytest.mark.alone
def test_a_leader_that_keeps_its_session_keeps_the_lock(url):
    with sharing(url) as (old, _), sharing(url) as (new, _):
        first, second = Leadership(old.connections, "first"), Leadership(new.connections, "second")
        first.attempt(A)
        for _ in range(12):  # 3 s, and the lock would be lost after 2.5
            assert first.holds()
            assert second.attempt(B) is None
            sleep(0.25)
        first.resign()
        assert second.attempt(B) == 2
        first.close()
        second.close()


def test_a_lost_session_is_noticed(postgres, url):
    with sharing(url) as (store, _):
        leadership = Leadership(store.connections, "only")
        assert leadership.attempt(A) == 1
        administer(postgres, f"SELECT pg_terminate_backend(pid) {OTHERS} AND application_name LIKE 'fedavg replica%'")
        assert not leadership.holds()
        assert leadership.attempt(A) == 2
        leadership.close()


def be_paused(store):
    with store.connections.beside("be paused") as connection:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '100ms'")
        sleep(1)
        connection.exec_driver_sql("SELECT 1")


def test_a_transaction_that_was_ended_since_its_process_was_paused_may_be_tried_again(url):
    with sharing(url) as (store, _), pytest.raises(StoreError, match="silent in it: try again") as ended:
        be_paused(store)
    assert ended.value.retryable


def test_a_pool_without_a_connection_left_is_told_and_may_be_asked_again(url, monkeypatch):
    with sharing(url) as (store, together):
        pool = store.connections._engine.pool
        monkeypatch.setattr(pool, "_timeout", 0.05)
        with ExitStack() as stack:
            for _ in range(pool.size() + pool._max_overflow - pool.checkedout()):
                stack.enter_context(store.connections.read("be busy"))
            with pytest.raises(StoreError, match="cannot look at the replicas .*: every connection is busy") as refused:
                together.head(A)
            assert refused.value.retryable
        assert together.head(A).epoch


def test_only_postgresql_is_shared(tmp_path):
    with Store.open(tmp_path / "run.db") as store, pytest.raises(StoreError, match="replicas share a PostgreSQL"):
        Leadership(store.connections, "x")


def test_a_round_that_was_full_is_open_again_if_a_replica_is_given_up_just_before_it_is_sealed(url):
    """Of two updates that were wanted one is lost by then: the round must not be closed with the other alone."""
    with sharing(url) as (store, together):
        claims = SharedClaims(together)
        hub = Hub(Guards(), claims=claims)
        member = Member(together, claims, hub, None, None, lambda *_: None, Heartbeats(store.connections), Requests())
        member.lead(1)
        member.look()
        together.join(ReplicaRow(B, "http://127.0.0.1:1", b"k" * 32, None))
        leadership = Leadership(store.connections, "only")
        leadership.attempt(member.replica)
        store.begin_round(1, 0, [0, 1], "0" * 64)
        leader = Leader(hub, together, member, Peers(member.key, lambda: member.replica), leadership)
        round = OpenRound(1, 0, "0" * 64, frozenset((0, 1)), 2, 1, monotonic() + 600)
        offer = WorkOffer(1, 0, "0" * 64, 2, 9.0, 1, 4.0, 0.1, {}, None, None, 2, 0, None)
        expected = Expected("0" * 16, 1, 0, "0" * 64, make_codec("float32"), 2, 10.0, None, frozenset())
        leader.open(round, 35.0)
        hub.collecting.open(round, [Group(frozenset((0, 1)), offer, expected, Update)], cap=35.0)
        hub.collecting.current.collected[0].sources.add(0)
        hub.collecting.current.collected[0].sizes[0] = 1.0
        together.claim(member.replica, 1, 0, 0)
        together.claim(B, 1, 0, 1)
        member.look()
        assert round.phase is RoundPhase.COMMITTING
        together.give_up([B])
        assert leader.totals() is None
        assert round.phase is RoundPhase.COLLECTING
        assert together.claim(member.replica, 1, 0, 1) is Receipt.ACCEPTED
        member.close()
        leader._threads.shutdown()
        leadership.close()


# Parts of a sum


RINGS = st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=5)


@given(rings=st.lists(RINGS, min_size=1, max_size=3), weight=st.floats(0.001, 1e6))
def test_a_part_of_a_sum_arrives_as_it_was(rings, weight):
    received = [Received(weight, {"train_loss": 0.1}, 7, 5, Seen(weight, 1.5, b"\0\n\xff")), Received(1.0, {}, 8)]
    parts = [PartOfGroup(torch.tensor(ring), 2**61, received, {5: 0.25}, frozenset([5])) for ring in rings]
    for sent, came in zip(parts, parse_parts(dump_parts(parts)), strict=True):
        assert sent.ring.tolist() == came.ring.tolist()
        assert (sent.bound, list(sent.received), sent.sizes, sent.sources) == (
            came.bound, list(came.received), came.sizes, came.sources,
        )  # fmt: skip


def test_parts_join_to_the_sum():
    one, two = (PartOfGroup(torch.tensor(ring), 2**40, [], {}, frozenset()) for ring in ([2**32, 0], [2**31, -(2**32)]))
    assert joined([one, two])[0].tolist() == [1.5, -1.0]


@pytest.mark.parametrize("data", [b"", b"[]\n12345678", b'[{"numbers": 2}]\n' + bytes(8), b"{", b"[1]\n"])
def test_what_is_no_part_is_told(data):
    with pytest.raises(FleetError, match="cannot be read"):
        parse_parts(data)
