"""Searches on toy data in real processes."""

import os
import signal
import time
from dataclasses import replace
from typing import final

import pytest
from paper_toys import PATHS, TOY_CELL, TOY_SETTING

import fedavg
import programs
from fedavg.campaign.execute import Aim, Campaign, Need, Outlay, check_report
from fedavg.campaign.processes import RunStarter, run_starter
from fedavg.campaign.records import ABANDONED, CAP, DIVERGED, INTERRUPTED, TARGET, Records
from fedavg.errors import FedAvgError
from fedavg.paper.measure import MEASURED, NOT_RUN, RUNNING, needs, result_of, running_keys
from fedavg.runlog.curves import rounds_to_target


@pytest.fixture(autouse=True, scope="module")
def importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, PATHS)))
        yield


@final
class Lent(RunStarter):
    """What several campaigns use, one after another: none of them ends it."""

    def __init__(self, own):
        self._own = own

    def start(self, order):
        return self._own.start(order)

    def close(self):
        pass


@pytest.fixture(scope="module")
def starter(importable):
    """To import PyTorch takes as long as most of these searches."""
    own = run_starter()
    yield Lent(own)
    own.close()


def goal(cell=TOY_CELL, seeds=1):
    return Aim(cell.name, cell.command, lambda records: needs(cell, records, seeds))


@pytest.fixture(scope="module")
def campaign(starter):
    def run(path, *goals, jobs=2, budget_s=None):
        said = []
        store, outlay = Records(path / "records"), Outlay(jobs, budget_s)
        return Campaign(goals, store, path / "runs", outlay, said.append, _starter=starter).run(), said

    return run


@pytest.fixture(scope="module")
def searched(campaign, tmp_path_factory):
    """A finished search, in two processes at a time."""
    path = tmp_path_factory.mktemp("search")
    report, said = campaign(path, goal())
    return path, report, said


def test_a_search_from_start_to_end(searched):
    path, report, said = searched
    assert [g.name for g in report.met] == [TOY_CELL.name]
    assert not report.left
    result = result_of(TOY_CELL, Records(path / "records"))
    assert result.status == MEASURED
    assert result.inside
    assert len(result.runs) >= 3
    assert result.ours is not None
    expected = fedavg.run(replace(TOY_CELL.plan(result.eta), rounds=TOY_CELL.allowance))
    crossed = rounds_to_target(list(expected.rounds), list(expected.accuracy), 0.93)
    assert result.ours == pytest.approx(crossed, abs=1e-3)
    for run in result.runs:
        crossing = rounds_to_target(run.rounds, run.values, 0.93)
        assert run.stopped == TARGET if crossing is not None else run.stopped != TARGET
        assert run.command == TOY_CELL.command
        assert run.sample_rounds[:4] == tuple(range(1, min(run.rounds_run, 4) + 1)) or run.diverged
    assert any(f"lr {result.eta:g} seed 0 reached 0.93 in round" in line for line in said)


def test_nothing_is_run_twice_not_even_on_another_machine(searched, tmp_path):
    path, _, _ = searched
    report = Campaign([goal()], Records(path / "records"), tmp_path / "runs", Outlay(1), pytest.fail).run()
    assert len(report.met) == 1
    assert not (tmp_path / "runs").exists()


def test_another_seed_and_a_higher_target_go_on_from_there(searched, campaign):
    path, _, _ = searched
    before = {run.digest: run.rounds_run for run in Records(path / "records")}
    higher = replace(TOY_CELL, target=0.95)
    report, _ = campaign(path, goal(seeds=2), goal(higher))
    assert not report.left
    store = Records(path / "records")
    assert result_of(TOY_CELL, store).seeds == (0, 1)
    assert result_of(higher, store).status == MEASURED
    assert all(run.rounds_run >= before.get(run.digest, 0) for run in store)


def test_a_record_without_its_run_starts_again_and_says_so(campaign, tmp_path):
    _, said = campaign(tmp_path / "here", fixed_plan(0.215, 8))
    assert said[0].endswith("lr 0.215 seed 0, up to 8 rounds")
    (tmp_path / "clone").mkdir()
    (tmp_path / "here" / "records").rename(tmp_path / "clone" / "records")
    _, said = campaign(tmp_path / "clone", fixed_plan(0.215, 12))
    assert said[0].endswith("rounds; 8 are on record, but their run directory is not here: from the start")
    assert Records(tmp_path / "clone" / "records").find(TOY_SETTING.plan(0.215)).rounds_run == 12


SESSION = """
import sys
from pathlib import Path
from fedavg.campaign.execute import Campaign, Outlay, Aim
from fedavg.paper.measure import needs
from fedavg.campaign.records import Records
from paper_toys import TOY_CELL
from dataclasses import replace
from typing import final
cell = replace(TOY_CELL, target=1.0, paper=None, allowance=7200)
goal = Aim(cell.name, cell.command, lambda records: needs(cell, records))
path = Path(sys.argv[1])
Campaign([goal], Records(path / "records"), path / "runs", Outlay(2), print).run()
"""
SLOW = replace(TOY_CELL, target=1.0, paper=None, allowance=7200)


def wait_until(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_search_loses_nothing(campaign, tmp_path, sign):
    out, err = tmp_path / "out", tmp_path / "err"
    session = programs.start_script(SESSION, tmp_path, out=out, err=err, prepare=[programs.heed_ctrl_c])
    runs = tmp_path / "runs"
    wait_until(lambda: sum(p.read_bytes().count(b"\n") > 20 for p in runs.glob("*/metrics.jsonl")) == 2)
    assert result_of(SLOW, Records(tmp_path / "records"), running_keys(runs)).status == RUNNING
    os.kill(session.pid, sign)
    session.join(120)
    assert session.exitcode in (1, -sign)
    wait_until(lambda: not running_keys(runs))
    if sign != signal.SIGKILL:
        stopped = list(Records(tmp_path / "records"))
        assert len(stopped) == 2
        assert {run.stopped for run in stopped} == {INTERRUPTED}
        assert all(run.rounds_run > 20 for run in stopped)
    short = replace(SLOW, allowance=40)
    campaign(tmp_path, goal(short), budget_s=600)
    store = Records(tmp_path / "records")
    assert result_of(short, store).status == MEASURED
    whole = fedavg.run(replace(SLOW.plan(0.215), rounds=20))
    assert store.find(SLOW.plan(0.215)).values[:20] == pytest.approx(tuple(whole.accuracy), abs=1e-5)


def test_a_budget_ends_in_time_and_says_what_is_left(campaign, tmp_path):
    began = time.monotonic()
    report, _ = campaign(tmp_path, goal(SLOW), budget_s=3)
    assert time.monotonic() - began < 120
    assert [g.name for g in report.left] == [SLOW.name]
    assert result_of(SLOW, Records(tmp_path / "records")).status == NOT_RUN


def test_what_does_not_fit_is_not_begun(campaign, tmp_path):
    report, said = campaign(tmp_path, replace(goal(), estimate_s=1e6), budget_s=60)
    assert len(report.left) == 1
    assert said == []


def fixed_plan(eta, rounds, **changes):
    plan = replace(TOY_SETTING.plan(eta), **changes)

    def missing(records):
        run = records.find(plan)
        done = run and (run.diverged or run.rounds_run >= rounds)
        return [] if done else [Need(plan, None, rounds, CAP, "enough")]

    return Aim(f"lr {eta:g}", "a command", missing)


def test_a_diverged_run_is_settled(campaign, tmp_path):
    report, _ = campaign(tmp_path, fixed_plan(1e20, 50))
    assert len(report.met) == 1
    (run,) = Records(tmp_path / "records")
    assert (run.stopped, run.rounds_run) == (DIVERGED, 0)
    assert "diverged" in run.reason


def test_spare_runs_come_after_all_others_and_end_when_nobody_needs_them(campaign, tmp_path):
    first, second = fixed_plan(0.1, 20), fixed_plan(0.2, 20)
    spare = Need(TOY_SETTING.plan(0.3), None, 1000, CAP, "enough", spare=True)
    with_spare = replace(first, needs=lambda records: [*needed, spare] if (needed := first.needs(records)) else [])
    report, said = campaign(tmp_path, with_spare, second, jobs=3)
    assert len(report.met) == 2
    assert [line.split(",")[0] for line in said[:3]] == [
        "lr 0.1: lr 0.1 seed 0",
        "lr 0.2: lr 0.2 seed 0",
        "lr 0.1: lr 0.3 seed 0",
    ]
    run = Records(tmp_path / "records").find(spare.plan)
    assert run.stopped == ABANDONED
    assert 0 < run.rounds_run < 1000


def test_one_that_fails_does_not_stop_the_others(campaign, tmp_path):
    report, _ = campaign(tmp_path, fixed_plan(0.1, 3, data="no_such_module:DATA"), fixed_plan(0.2, 3))
    assert [g.name for g in report.met] == ["lr 0.2"]
    assert "cannot import 'no_such_module:DATA'" in report.failed["lr 0.1"]
    with pytest.raises(FedAvgError, match="1 could not be measured: lr 0.1: data: cannot import"):
        check_report(report)
