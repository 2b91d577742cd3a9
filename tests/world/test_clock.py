"""The simulated clock alone: who is there, how long errands take, what time it is."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.errors import DataError, FleetError, PlanError
from fedavg.specs import text_of
from fedavg.world import DEVICES, WORLDS, Alike, Always, Deadline, Diurnal, Everyone, LogNormal, Markov, make_world
from fedavg.world.clock import Clock, Errand, fates
from fedavg.world.presence import Listed, PresentNow
from fedavg.world.trace import read_trace

H = 3600.0


def errand(clients, examples=100.0, down=2e6, up=1e6, round=1):
    n = len(clients)
    return Errand(round, 0, np.array(clients), np.full(n, examples), np.full(n, down), np.full(n, up))


def listed(rows, clients, period=inf):
    starts, ends = (np.array([row[i] for row in rows], float) for i in (1, 2))
    first = np.searchsorted([row[0] for row in rows], np.arange(clients + 1))
    return Listed(first, starts, ends, period)


def test_an_errand_takes_fetching_training_and_sending():
    """Latency 1 + 2 MB at 2 MB/s + 100 examples at 50 a second + latency 1 + 1 MB at 0.5 MB/s."""
    clock = Clock(Always(Alike(speed=50, up=0.5, down=2, latency=1)), Everyone(), 3, seed=0)
    outcome = clock.run(errand([0, 2]), wanted=2)
    assert outcome.seconds.tolist() == [7.0, 7.0]
    assert (clock.now, outcome.spent_s, outcome.wasted_s) == (7.0, 14.0, 0.0)
    assert (outcome.sent_up, outcome.sent_down, outcome.wasted_up) == (2_000_000, 4_000_000, 0)
    assert fates(outcome) == {"reported": 2, "late": 0, "dropped": 0}


def test_a_client_that_leaves_in_the_middle_is_lost_and_its_work_wasted():
    """It has fetched all (2 s), trained 1 of 2 s, and sent nothing."""
    world = Always(Alike(speed=50, up=0.5, down=1))
    clock = Clock(world, Everyone(), 2, seed=0)
    clock._attendance = PresentNow(listed([(0, 0, 3), (1, 0, 100)], 2))
    outcome = clock.run(errand([0, 1]), wanted=2)
    assert outcome.closed.fates.tolist() == [2, 0]
    assert (outcome.wasted_s, outcome.wasted_down, outcome.wasted_up, outcome.sent_up) == (3.0, 2_000_000, 0, 1_000_000)


def test_at_a_deadline_half_a_message_has_been_sent():
    """Sending begins after 4 s and takes 2 s; the round ends at 5 s."""
    clock = Clock(Always(Alike(speed=50, up=0.5, down=1)), Deadline(5.0, minimum=0.0), 1, seed=0)
    outcome = clock.run(errand([0]), wanted=1)
    assert (outcome.wasted_up, outcome.wasted_down, clock.now) == (500_000, 2_000_000, 5.0)


def test_the_server_s_line_is_shared():
    """Both fetch 2 MB from a server that sends 1 MB/s: 4 s instead of 2. They send one after the other's half."""
    clock = Clock(Always(Alike(speed=50, up=0.5, down=1, server_out=1.0, server_in=0.5)), Everyone(), 2, seed=0)
    assert clock.run(errand([0, 1]), wanted=2).seconds.tolist() == [10.0, 10.0]


def test_waiting_ends_when_enough_are_there():
    clock = Clock(Always(), Everyone(), 4, seed=0)
    clock._attendance = PresentNow(listed([(0, 5, 20), (1, 7, 9), (2, 8, 30), (3, 1, 6)], 4))
    able = np.ones(4, bool)
    assert clock.gather(able, 1).tolist() == [False, False, False, True]
    assert clock.now == 1.0
    assert clock.gather(able, 3).tolist() == [True, True, True, False]
    assert clock.now == 8.0
    able[1] = False
    assert clock.gather(able, 2).tolist() == [True, False, True, False]


def test_nobody_comes_for_two_weeks():
    clock = Clock(Always(), Everyone(), 2, seed=0)
    clock._attendance = PresentNow(listed([(0, 0, 5), (1, 5, 9)], 2))
    with pytest.raises(FleetError, match="0 clients with data are there, and a round needs 2; expected as many"):
        clock.gather(np.ones(2, bool), 2)


def test_a_night_is_where_the_sun_is_down():
    """Two zones, 12 h apart, 22 to 6 o'clock local time without a spread: at 23 UTC zone 0, at 11 UTC zone 1."""
    clock = Clock(Diurnal(zones=2, spread=0), Everyone(), 6, seed=0)
    seen = {}
    for hour in (0.0, 5.9, 6.1, 9.9, 10.1, 17.9, 18.1, 21.9, 22.1, 23.0, 30.1):
        clock.set(hour * H)
        seen[hour] = set((np.flatnonzero(clock.there) % 2).tolist())
    assert seen == {0.0: {0}, 5.9: {0}, 6.1: set(), 9.9: set(), 10.1: {1}, 17.9: {1}, 18.1: set(), 21.9: set(),
                    22.1: {0}, 23.0: {0}, 30.1: set()}  # fmt: skip
    assert clock.groups.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_markov_chain_is_there_on_over_on_and_off():
    clock = Clock(Markov(on=1, off=3), Everyone(), 20_000, seed=0)
    shares = []
    for hour in (0, 7, 100):
        clock.set(hour * H)
        shares.append(clock.there.mean())
    assert np.allclose(shares, 0.25, atol=0.015)


@pytest.mark.parametrize("spec", ["markov:0.5:1", "diurnal:3", "always"])
def test_who_is_there_does_not_depend_on_when_somebody_looked(spec):
    often, once = (Clock(make_world(spec), Everyone(), 50, seed=3) for _ in range(2))
    for hour in range(60):
        often.set(hour * H)
        often.is_there(7, (hour + 0.5) * H)
    once.set(59.5 * H)
    often.set(59.5 * H)
    assert (often.there == once.there).all()
    assert (often._attendance.end == once._attendance.end).all()


def test_a_list_is_gone_through_again():
    attendance = PresentNow(listed([(0, 1, 2), (0, 4, 5), (1, 3, 6)], 2, period=10.0))
    seen = [attendance.there(t).tolist() for t in (0.5, 1.5, 4.5, 11.5, 13.5, 34.5, 36.5)]
    assert seen == [[False, False], [True, False], [True, True], [True, False], [False, True], [True, True],
                    [False, False]]  # fmt: skip


def test_who_is_there_when_a_list_ends_and_begins_stays():
    """Client 0 always; client 1 from 7 to 12, 17 to 22, ...; client 2 leaves at 10 and comes at 11."""
    attendance = PresentNow(listed([(0, 0, 10), (1, 0, 2), (1, 4, 5), (1, 7, 10), (2, 1, 10)], 3, period=10.0))
    seen = []
    for t in (1, 3, 4.5, 6, 8):
        attendance.advance(t)
        seen.append((attendance.start.tolist()[1], attendance.end.tolist()[1]))
    assert seen == [(0, 2), (4, 5), (4, 5), (7, 12), (7, 12)]
    assert attendance.there(10.5).tolist() == [True, True, False]
    assert attendance.end.tolist() == [inf, 12, 20]
    assert [attendance.there(t)[1] for t in (13, 14.5, 16, 20.5, 23, 24.5)] == [False, True, False, True, False, True]
    assert attendance.end.tolist() == [inf, 25, 30]


@given(st.floats(0, 0.9), st.integers(1, 40))
def test_drop_outs_are_as_frequent_as_told_and_happen_before_the_end(dropout, n):
    clock = Clock(Always(Alike(dropout=dropout)), Everyone(), n, seed=5)
    outcome = clock.run(errand(range(n)), wanted=n)
    assert outcome.closed.at <= outcome.seconds.max()
    if dropout == 0:
        assert fates(outcome)["dropped"] == 0


def test_drop_outs_by_number():
    clock = Clock(Always(Alike(dropout=0.3)), Everyone(), 20_000, seed=5)
    dropped = fates(clock.run(errand(range(20_000)), wanted=20_000))["dropped"]
    assert abs(dropped / 20_000 - 0.3) < 0.015


def test_devices_are_spread_around_their_medians():
    rates = LogNormal(speed=10, spread=0.5).rates(20_001, np.random.default_rng(0))
    assert np.median(rates.examples_s) == pytest.approx(10, rel=0.02)
    assert np.log(rates.examples_s).std() == pytest.approx(0.5, rel=0.02)
    assert np.allclose(rates.down / rates.up, 5.0)


SPECS = {
    "always": "always:lognormal:20.0:dropout=0.1",
    "diurnal": "diurnal:3:20.0:devices=alike:50.0",
    "markov": "markov:0.5:2.0:lognormal",
    "trace": "trace:somewhere.jsonl:reuse=true:devices=alike:latency=0.5",
}


def test_every_world_s_text_reads_back():
    assert SPECS.keys() == WORLDS.keys()
    assert set(DEVICES) == {"alike", "lognormal"}
    for spec in SPECS.values():
        assert make_world(str(make_world(spec))) == make_world(spec)
        assert text_of(make_world(spec)) == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("diurnal:0", "world diurnal: zones is 0; expected 1 or more"),
        ("diurnal:hours=24", "world diurnal: hours is 24; expected hours above 0, at most 23"),
        ("markov:0", "world markov: on is 0 hours; expected from 0.001"),
        ("always:alike:0", "devices alike: speed is 0; expected a number above 0"),
        ("always:lognormal:dropout=1.5", "devices lognormal: dropout is 1.5; expected a number from 0 to 1"),
        ("mars", "world: got 'mars'; expected one of always"),
    ],
)
def test_what_can_not_be_is_refused(spec, message):
    with pytest.raises(PlanError, match=message):
        make_world(spec)


def test_a_zone_without_clients_is_refused():
    with pytest.raises(PlanError, match="4 zones for 3 clients leave a zone without any; expected at most 3 zones"):
        Clock(Diurnal(4), Everyone(), 3, seed=0)


TRACE = """\
{"client": 1, "from": 50, "to": 60, "speed": 5, "group": 1}
{"client": 0, "from": 10, "to": 20, "up": 0.5}
{"client": 0, "from": 0, "to": 5}
{"client": 2}
"""


def test_a_trace_is_read_the_same_from_json_lines_and_csv(tmp_path):
    (tmp_path / "a.jsonl").write_text(TRACE)
    (tmp_path / "a.csv").write_text("client,from,to,speed,up,group\n1,50,60,5,,1\n0,10,20,,0.5,\n0,0,5,,,\n2,,,,,\n")
    for name in ("a.jsonl", "a.csv"):
        trace = read_trace(tmp_path / name)
        assert (trace.first.tolist(), trace.starts.tolist(), trace.ends.tolist()) == (
            [0, 2, 3, 3],
            [0, 10, 50],
            [5, 20, 60],
        )
        assert (trace.speed[1], trace.up[0], trace.groups.tolist(), trace.period_s) == (5.0, 5e5, [0, 1, 0], 60.0)
    clock = Clock(make_world(f"trace:{tmp_path}/a.jsonl:repeat=false"), Everyone(), 3, seed=0)
    assert [clock.set(t) or np.flatnonzero(clock.there).tolist() for t in (4, 7, 15, 55, 70)] == [[0], [], [0], [1], []]
    assert clock._rates.examples_s.tolist() == [100.0, 5.0, 100.0]
    with pytest.raises(PlanError, match=r"has 3 clients, and the plan has 4; expected at most 3, or reuse=true"):
        Clock(make_world(f"trace:{tmp_path}/a.jsonl"), Everyone(), 4, seed=0)
    again = Clock(make_world(f"trace:{tmp_path}/a.jsonl:reuse=true"), Everyone(), 5, seed=0)
    assert np.flatnonzero(again.there).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"client": 0, "from": 0, "to": 5}\n{"client": 0, "from": 4, "to": 9}', "line 2: got client 0 from 4, while"),
        ('{"client": 0, "from": 0, "to": 5}\n{"client": 2, "from": 4, "to": 9}', "none with number 1; expected all"),
        ('{"client": 0, "from": 5, "to": 5}', "line 1: got from 5 to 5; expected 0 <= from < to"),
        ('{"client": 0, "from": 5}', "line 1: got one of 'from' and 'to'; expected both"),
        ('{"client": 0}', "has nobody who is ever there; expected an interval"),
        ('{"client": -1, "from": 0, "to": 5}', "got client '-1'; expected a whole number from 0"),
        ('{"client": 0, "from": 0, "to": 5, "when": 1}', "unknown column 'when'; expected only client, from"),
        ('{"client": 0, "from": 0, "to": 5, "group": 2}', "has no client in group 0, but some in group 2"),
        ('{"client": 0, "from": 0, "to": 5, "speed": 0}', "got speed 0; expected a number above 0"),
        ('{"client": 0, "from": NaN, "to": 5}', "got from nan; expected a finite number"),
        ("[1]", "line 1: got this is not a JSON object"),
        ("", "has no row; expected all numbers from 0 on"),
    ],
)  # fmt: skip
def test_a_trace_that_is_wrong_is_refused_by_its_line(tmp_path, text, message):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        read_trace(tmp_path / "t.jsonl")


def test_intervals_that_touch_are_one(tmp_path):
    rows = [
        '{"client": 0, "from": 5, "to": 9}',
        '{"client": 0, "from": 0, "to": 5}',
        '{"client": 0, "from": 10, "to": 12}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    trace = read_trace(tmp_path / "t.jsonl")
    assert (trace.first.tolist(), trace.starts.tolist(), trace.ends.tolist()) == ([0, 2], [0, 10], [9, 12])


def test_a_trace_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot read .*: No such file"):
        read_trace(tmp_path / "nothing.jsonl")
