from multiprocessing import get_context

import pytest

from fedavg.recent import LEAST_BYTES, RecentStates


def opened(clients, place_bytes):
    recent = RecentStates(clients, place_bytes)
    recent.open()
    return recent


def newest(recent):
    """Round, client and bytes of what `new` gives."""
    return [(version.round, version.client, bytes(version.payload)) for version in recent.new()]


def test_a_client_has_its_last_two_versions():
    recent = opened(clients=3, place_bytes=16)
    for round, text in ((1, b"one"), (4, b"four"), (9, b"nine")):
        assert recent.put(1, round, [text, b"!"])
    assert [recent.last(1, before) for before in (1, 4, 5, 9, 10)] == [0, 0, 4, 4, 9]
    assert (recent.get(1, 4), recent.get(1, 9)) == (b"four!", b"nine!")
    assert (recent.last(0, 99), recent.last(2, 99)) == (0, 0)


def test_nothing_is_taken_until_somebody_will_ask_for_it():
    recent = RecentStates(clients=1, place_bytes=16)
    assert not recent.put(0, 1, [b"one"])
    recent.open()
    assert recent.put(0, 1, [b"one"])


def test_a_round_that_is_done_again_leaves_the_version_before_it():
    recent = opened(clients=1, place_bytes=16)
    for round, text in ((1, b"one"), (2, b"two"), (2, b"2"), (2, b"second")):
        recent.put(0, round, [text])
    assert (recent.get(0, recent.last(0, 2)), recent.get(0, recent.last(0, 3))) == (b"one", b"second")


def test_what_is_too_large_is_refused_and_hides_nothing_that_was_kept_in_its_round():
    recent = opened(clients=2, place_bytes=16)
    recent.put(0, 1, [bytes(16)])
    recent.put(0, 2, [b"first attempt"])
    assert not recent.put(0, 2, [bytes(9), bytes(8)])
    assert recent.last(0, 99) == 1


def test_a_version_that_is_forgotten_uncovers_the_one_before():
    recent = opened(clients=1, place_bytes=16)
    recent.put(0, 1, [b"one"])
    recent.put(0, 2, [b"two"])
    recent.forget(0, 2)
    assert recent.get(0, recent.last(0, 9)) == b"one"


def test_a_copy_does_not_change_what_is_kept():
    recent = opened(clients=1, place_bytes=16)
    recent.put(0, 1, [b"one"])
    recent.get(0, 1)[:] = b"???"
    assert recent.get(0, 1) == b"one"


def test_what_is_new_is_told_once_and_by_rounds():
    recent = opened(clients=3, place_bytes=16)
    recent.put(2, 1, [b"c1"])
    recent.put(0, 2, [b"a2"])
    recent.put(2, 2, [b"c2"])
    assert newest(recent) == [(1, 2, b"c1"), (2, 0, b"a2"), (2, 2, b"c2")]
    assert newest(recent) == []
    recent.put(0, 2, [b"again"])
    recent.put(1, 3, [b"b3"])
    assert newest(recent) == [(2, 0, b"again"), (3, 1, b"b3")]


def test_what_could_not_be_written_is_still_new():
    recent = opened(clients=2, place_bytes=16)
    recent.put(0, 1, [b"a"])
    recent.put(1, 1, [b"b"])
    told = recent.new()
    assert [next(told).client, next(told).client] == [0, 1]
    told.close()  # as when the disk is full while the second is written
    assert newest(recent) == [(1, 1, b"b")]


def _interrupted(recent):
    """Dies within a version, as a worker that is killed."""

    class Cut(bytes):
        def __len__(self):
            return 4

    recent.put(0, 3, [b"half", Cut(b"no")])


def test_a_process_that_dies_while_it_writes_leaves_the_version_before():
    recent = opened(clients=1, place_bytes=16)
    recent.put(0, 1, [b"one"])
    recent.put(0, 2, [b"two"])
    process = get_context("fork").Process(target=_interrupted, args=(recent,))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert recent.last(0, 99) == 2
    assert recent.get(0, 2) == b"two"


def test_forked_processes_see_what_the_others_keep():
    recent = opened(clients=2, place_bytes=16)
    process = get_context("fork").Process(target=recent.put, args=(1, 5, [b"five"]))
    process.start()
    process.join()
    assert recent.get(1, recent.last(1, 6)) == b"five"
    assert newest(recent) == [(5, 1, b"five")]


@pytest.mark.parametrize(("budget", "there"), [(2 * 10 * LEAST_BYTES, True), (2 * 10 * LEAST_BYTES - 1, False)])
def test_too_many_clients_for_the_memory_have_none_of_it(budget, there):
    assert (RecentStates.within(budget, clients=10) is not None) == there
