"""A fleet of a user's own, in the three forms of a part: an object, a name of the registry, an import name."""

import json
import sys

import pytest
import torch

import programs
from fedavg import Fleet, LocalFleet, resume, run, train
from fedavg.errors import FleetError, PlanError
from fedavg.fleets import make_fleet
from toys import toy_plan

#: A module that a user may have: a fleet that holds a local one and counts what is asked of it.
MINE = """
from fedavg import Fleet, LocalFleet


class Counting(Fleet):
    seen = []

    def __init__(self, limit: int = 10) -> None:
        self.limit, self.inner = limit, LocalFleet()

    def open(self, plan):
        population = self.inner.open(plan)
        self.fingerprint, self.test = self.inner.fingerprint, self.inner.test
        return population

    def keep_states_in(self, directory):
        self.inner.keep_states_in(directory)

    def start(self, setup):
        initial = self.inner.start(setup)
        self.engine = self.inner.engine
        return initial

    def draw(self, round, weights):
        return self.inner.draw(round, weights)

    def train(self, cohort, work, parts):
        self.seen.append((self.limit, work.round))
        return self.inner.train(cohort, work, parts)

    def evaluate(self, weights, on):
        return self.inner.evaluate(weights, on)

    def evaluate_on_clients(self, weights, round):
        return self.inner.evaluate_on_clients(weights, round)

    def close(self):
        self.inner.close()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "own_fleets.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_fleets", raising=False)
    import own_fleets

    return own_fleets.Counting


def weights_of(result):
    return torch.cat([value.flatten() for value in result.model.state_dict().values()])


def test_a_users_fleet_runs_a_plan_in_all_three_forms(mine, monkeypatch):
    expected = weights_of(run(toy_plan()))
    monkeypatch.setitem(Fleet.registry(), "counting", mine)
    for form in (mine(limit=4), "counting:4", "counting:limit=4", "own_fleets:Counting:limit=4"):
        mine.seen.clear()
        assert torch.equal(weights_of(run(toy_plan(), fleet=form)), expected)
        *_, last = train(toy_plan(), form)
        assert torch.equal(last.state.weights, expected)
        assert mine.seen == [(4, round) for round in (1, 2, 3, 4)] * 2
    assert make_fleet("own_fleets:Counting").limit == 10


def test_it_is_no_part_of_the_plan(mine, tmp_path):
    run(toy_plan(), tmp_path / "here")
    run(toy_plan(), tmp_path / "there", fleet=mine())
    for file in ("plan.toml", "run.json"):
        here, there = ((tmp_path / name / file).read_text() for name in ("here", "there"))
        assert here == there


class Stop(Exception):
    pass


def stop_after(round):
    def watch(event):
        if event.round == round:
            raise Stop

    return watch


@pytest.mark.parametrize(("first", "second"), [("local", "own"), ("own", "local"), ("own", "own")])
def test_what_clients_keep_outlives_a_stop_whatever_the_fleet(mine, tmp_path, first, second):
    plan = toy_plan(algorithm="scaffold", rounds=5)
    fleets = {"local": lambda: "local", "own": mine}
    with pytest.raises(Stop):
        run(plan, tmp_path / "run", stop_after(3), fleets[first]())
    objects = {"task": plan.task, "data": plan.data}
    resumed = resume(tmp_path / "run", fleet=fleets[second](), **objects)
    assert torch.equal(weights_of(resumed), weights_of(run(plan)))


def test_one_fleet_may_run_several_plans(tmp_path):
    """What clients of a recorded run keep is not found, nor added to, by a later run that is not recorded."""
    plan, fleet = toy_plan(algorithm="scaffold"), LocalFleet()
    recorded = run(plan, tmp_path / "run", fleet=fleet)
    kept = {path: path.read_bytes() for path in (tmp_path / "run" / "clients").iterdir()}
    assert kept
    assert torch.equal(weights_of(run(plan, fleet=fleet)), weights_of(recorded))
    assert {path: path.read_bytes() for path in (tmp_path / "run" / "clients").iterdir()} == kept


def test_a_fleet_without_a_place_for_what_clients_keep_is_refused_for_a_recorded_run(mine, tmp_path):
    del mine.keep_states_in
    run(toy_plan(), tmp_path / "without", fleet=mine())
    run(toy_plan(algorithm="scaffold"), fleet=mine())
    with pytest.raises(FleetError, match="Counting has no place for it that a resumed run would find"):
        run(toy_plan(algorithm="scaffold"), tmp_path / "with", fleet=mine())
    assert not (tmp_path / "with").exists()


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        ("remote", r"fleet: got 'remote'; expected one of local, ray:.*or 'module:Name' of installed code"),
        ("local:3", r"fleet: got 'local:3'; expected 'local'"),
        (LocalFleet, r"fleet: got the class LocalFleet; expected an object: LocalFleet\(...\)"),
        (None, r"fleet: got None of type NoneType; expected a fedavg.Fleet, or text: local"),
        ("fedavg:FedAvg", r"fleet: 'fedavg:FedAvg' is .*; expected a fedavg.Fleet"),
        ("own_fleets:Counting:5:6", r"expected 'own_fleets:Counting:\[limit=10\]'"),
    ],
)
def test_what_is_no_fleet_is_refused(mine, fleet, message):
    for call in (lambda: run(toy_plan(), fleet=fleet), lambda: next(train(toy_plan(), fleet))):
        with pytest.raises(PlanError, match=message):
            call()


def test_the_command_line_takes_a_name_or_an_import_name(mine, tmp_path):
    def fedavg(*arguments):
        return programs.fedavg(*arguments, "--json", "--quiet", cwd=tmp_path)

    plan = ["run", "mnist-2nn", "-C", "0.02", "--workers", "1", "--no-plot"]
    digests = []
    for name in ("local", "own_fleets:Counting:limit=1"):
        done = fedavg(*plan, "--rounds", "1", "--fleet", name, "--run-dir", f"runs/{name[:5]}")
        assert done.returncode == 0, done.stderr
        digests.append(json.loads(done.stdout)["model_sha256"])
    assert digests[0] == digests[1]
    longer = fedavg("resume", "runs/own_f", "--rounds", "2", "--fleet", "own_fleets:Counting:limit=1", "--no-plot")
    assert longer.returncode == 0, longer.stderr
    for extra in ([], ["--dry-run"]):
        refused = fedavg(*plan, "--fleet", "own_fleets:Nothing", *extra)
        assert refused.returncode == 2
        assert "fleet: cannot import 'own_fleets:Nothing'" in refused.stderr
