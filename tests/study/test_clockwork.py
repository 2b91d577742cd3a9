"""The clock alone: a day without training, its picture, and what it comes to."""

import json

import numpy as np
import pytest

from fedavg.errors import PlanError
from fedavg.study.clockwork import Scene, ticks
from fedavg.study.timeline import draw_day
from fedavg.world.presence import DAY_S
from fedavg.world.report import described, gini
from programs import fedavg

SCENE = Scene("diurnal:2:hours=10:devices=lognormal:dropout=0.1", "deadline:300:1.3", clients=200, wanted=10)


def test_a_day_passes_and_is_the_same_again():
    day, again = (list(ticks(SCENE, DAY_S)) for _ in range(2))
    assert [tick.row for tick in day] == [tick.row for tick in again]
    assert day[-1].outcome.closed.at >= DAY_S > day[-2].outcome.closed.at
    for tick in day:
        assert tick.row.asked == 13
        assert len(set(tick.errand.clients.tolist())) == 13
    assert day[-1].memory.asked.sum() == 13 * len(day)


def test_what_a_day_comes_to():
    day = list(ticks(SCENE, DAY_S))
    found = described([tick.row.to_dict() for tick in day], day[-1].memory.reported)
    assert sum(found["groups"].values()) == pytest.approx(1)
    assert 0.05 < found["dropped"] < 0.2
    assert 0 < found["wasted"] < 0.6
    assert found["never"] == int((day[-1].memory.reported == 0).sum())


def test_who_is_seldom_there_takes_part_more_equally_with_the_corrected_sampler(tmp_path):
    """A third of the clients is there for eight hours a day, the others all day."""
    rows = [{"client": k, "from": 0, "to": DAY_S / 3 if k % 3 == 0 else DAY_S} for k in range(120)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scene = Scene(f"trace:{tmp_path}/t.jsonl:devices=alike:speed=2", clients=120, wanted=10)
    unequal = {}
    for sampling in ("fixed", "corrected"):
        *_, last = ticks(Scene(**{**vars(scene), "sampling": sampling}), 5 * DAY_S)
        unequal[sampling] = gini(last.memory.reported)
    assert unequal["corrected"] < 0.9 * unequal["fixed"]


def test_a_million_clients_are_no_list_of_objects():
    """Ten rounds among 200,000 clients; the benchmark has the million."""
    scene = Scene("markov:1:3:lognormal", "deadline:600:1.2", clients=200_000, wanted=1000)
    some = [tick for tick, _ in zip(ticks(scene, DAY_S), range(10), strict=False)]
    assert all(tick.row.asked == 1200 for tick in some)
    assert np.allclose([tick.row.there / 200_000 for tick in some], 0.25, atol=0.01)


def test_a_picture_of_the_day(tmp_path):
    draw_day(SCENE, list(ticks(SCENE, DAY_S)), tmp_path / "day.png")
    assert (tmp_path / "day.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_sampler_that_looks_at_losses_is_refused():
    with pytest.raises(PlanError, match="which looks at losses, and nobody trains here"):
        next(ticks(Scene("always", sampling="oort"), 1.0))


def test_gini_by_hand():
    """1, 2, 3: sum of |differences| over all pairs is 8; over 2 n² mean = 2 · 9 · 2."""
    assert gini(np.array([3, 1, 2])) == pytest.approx(8 / 36)
    assert gini(np.zeros(3)) == 0.0


def test_the_commands(tmp_path):
    def run(*arguments):
        done = fedavg("world", *arguments)
        return done.returncode, done.stdout + done.stderr

    picture = tmp_path / "day.png"
    code, out = run("day", "diurnal:2", "--clients", "50", "--wanted", "5", "--picture", str(picture), "--json")
    assert code == 0, out
    assert json.loads(out)["rounds"] > 0
    assert picture.exists()
    behaviour = {"1": {"active": [0], "inactive": [50], "finish_time": 100, "duration": 50, "model": ""}}
    (tmp_path / "b.json").write_text(json.dumps(behaviour))
    code, out = run("convert", "fedscale", str(tmp_path / "b.json"), str(tmp_path / "t.jsonl"))
    assert (code, out.strip()) == (0, f"{tmp_path}/t.jsonl: 1 clients in 1 rows")
    code, out = run("day", "nowhere")
    assert code == 2
    assert "world: got 'nowhere'; expected one of always" in out
