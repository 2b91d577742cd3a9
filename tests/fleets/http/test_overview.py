"""The status of several replicas as one."""

from fedavg.fleets.http.server.replicas.overview import overview, told
from fedavg.fleets.http.server.store.heartbeats import Heartbeat


def status(accepted, present, **more):
    counts = {"updates_accepted": accepted, "updates_capped": 0, "held_polls": 2, "updates_refused": {"not-finite": 1}}
    return counts | {"reports": {}, "present": present, "resting": 0, "committed": 7, "round": None, **more}


def test_counts_are_added_up_and_who_is_there_is_what_the_leader_knows():
    own = status(3, 1, reports={"battery": 2})
    beats = [
        Heartbeat(0xAB, "http://a", 9.0, 4, told(status(100, 50))),  # led before, and was paused since
        Heartbeat(0xCD, "http://b", 0.2, 5, told(status(10, 6, resting=1))),
        Heartbeat(0xEF, "http://c", 0.4, None, told(status(2, 1))),  # this one, a second ago
    ]
    found = overview(own, 0xEF, beats, 0.5, operator=False)
    assert (found["updates_accepted"], found["held_polls"], found["present"], found["resting"]) == (113, 6, 6, 1)
    assert (found["updates_refused"], found["reports"]) == ({"not-finite": 3}, {"battery": 2})
    assert (found["committed"], found["round"]) == (7, None)
    assert found["replicas"] == [
        {"name": "000000ab", "leads": False, "heard_s_ago": 9.5, "updates_accepted": 100, "held_polls": 2},
        {"name": "000000cd", "leads": True, "heard_s_ago": 0.7, "updates_accepted": 10, "held_polls": 2},
        {"name": "000000ef", "leads": False, "heard_s_ago": 0.9, "updates_accepted": 3, "held_polls": 2},
    ]
    assert [each["url"] for each in overview(own, 0xEF, beats, 0.5, operator=True)["replicas"]] == [
        "http://a", "http://b", "http://c",
    ]  # fmt: skip


def test_the_leader_tells_what_it_knows_itself_and_a_replica_that_is_not_heard_of_yet_tells_of_itself():
    beats = [Heartbeat(1, "http://a", 0.0, 2, told(status(10, 6)))]
    assert overview(status(11, 8), 1, beats, 0.0, operator=False)["present"] == 8
    assert overview(status(4, 3), 2, [], 0.0, operator=False) == status(4, 3) | {"replicas": []}
