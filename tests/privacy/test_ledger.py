"""What a run writes down about its privacy, when it stops, and what a crash cannot do to it."""

import json
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedavg
import programs
from fedavg.cohorts import sample_cohort
from fedavg.dp.accounting import FixedSize, PoissonSampling, epsilon
from fedavg.errors import PlanError, RunDirError
from fedavg.runlog.rundir import RunDir
from fedavg.setup import population_of, resolve_data, simulation
from toys import TOY, toy_data, toy_plan

STAGES = ("clip:0.5", "weigh:equal", "noise:2.0")


def private(**changes):
    return toy_plan(**{"stages": STAGES, "dp_delta": 1e-3, "rounds": 6, **changes})


def rounds_of(plan):
    return [event for event in fedavg.train(plan) if isinstance(event, fedavg.Round)]


@pytest.mark.parametrize(("sampling", "means"), [("fixed", FixedSize(5, 3)), ("poisson", PoissonSampling(0.6))])
def test_every_round_has_its_epsilon_and_all_that_it_follows_from(sampling, means):
    events = rounds_of(private(sampling=sampling))
    for event in events:
        assert event.epsilon == pytest.approx(epsilon(means, 2.0, event.round, 1e-3))
    entry = events[-1].ledger
    assert entry["epsilon"] == events[-1].epsilon
    assert entry["round"] == 6
    assert (entry["clients"], entry["cohort"], entry["sampling"]) == (5, 3, sampling)
    assert (entry["noise"], entry["delta"], entry["accountant"]) == ("seeded", 1e-3, "rdp")
    assert json.loads(json.dumps(entry)) == entry


def test_the_default_delta_is_below_one_over_the_clients():
    assert rounds_of(private(dp_delta=None, rounds=1))[0].ledger["delta"] == pytest.approx(5**-1.1)


def test_a_run_without_noise_says_nothing_of_privacy(tmp_path):
    result = fedavg.run(toy_plan(stages=("clip:0.5",)), tmp_path / "run")
    row = RunDir(tmp_path / "run").rows()[-1]
    assert "epsilon" not in row
    assert "ledger" not in row
    assert "privacy" not in result.summary.to_dict()


def test_the_run_stops_before_the_round_that_would_be_too_dear(tmp_path):
    costs = [event.epsilon for event in rounds_of(private())]
    limit = (costs[3] + costs[4]) / 2
    result = fedavg.run(private(dp_epsilon=limit), tmp_path / "run")
    assert result.summary.status == "budget spent"
    assert result.summary.rounds == 4
    assert result.summary.privacy["epsilon"] == pytest.approx(costs[3])
    rows = RunDir(tmp_path / "run").rows()
    assert [row["epsilon"] for row in rows] == pytest.approx(costs[:4])
    again = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data())
    assert again.summary == result.summary, "a spent budget stays spent"


def test_a_budget_that_can_not_pay_for_one_round_is_refused():
    with pytest.raises(PlanError, match=r"dp_epsilon: got 0.01, but round 1 alone costs .*\(replace one client\)"):
        simulation(private(dp_epsilon=0.01))


def test_a_budget_without_noise_is_refused():
    with pytest.raises(PlanError, match=r"dp_delta: got 0.001, but no stage adds noise"):
        simulation(private(stages=()))
    with pytest.raises(PlanError, match="dp_epsilon: got 3, but no stage adds noise"):
        simulation(toy_plan(dp_epsilon=3))


def test_poisson_cohorts_have_the_size_on_average_and_each_client_its_own_coin():
    plan = toy_plan(sampling="poisson")
    clients = population_of(resolve_data(plan))
    cohorts = [sample_cohort(plan, clients, round) for round in range(1, 2001)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert sizes.mean() == pytest.approx(3, abs=5 * (5 * 0.6 * 0.4 / 2000) ** 0.5)
    assert sizes.var() == pytest.approx(5 * 0.6 * 0.4, rel=0.2)
    counts = np.bincount(np.concatenate(cohorts).astype(int), minlength=6)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3, 4, 5]] - 1200).max() < 5 * (2000 * 0.6 * 0.4) ** 0.5


def first_empty_round(plan):
    clients = population_of(resolve_data(plan))
    return next(round for round in range(1, 500) if not sample_cohort(plan, clients, round))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_without_clients_leaves_the_weights(workers):
    plan = toy_plan(sampling="poisson", C=0, workers=workers)
    empty = first_empty_round(plan)
    events = list(fedavg.train(toy_plan(sampling="poisson", C=0, rounds=empty, workers=workers)))
    assert events[-1].clients == 0
    assert events[-1].bytes_up == events[-1].bytes_down == 0
    assert events[-1].train_loss is None
    assert torch.equal(events[-1].state.weights, events[-2].state.weights)


def test_a_private_round_without_clients_is_noised_all_the_same():
    empty = first_empty_round(private(sampling="poisson", C=0))
    events = list(fedavg.train(private(sampling="poisson", C=0, rounds=empty)))
    assert events[-1].clients == 0
    moved = (events[-1].state.weights - events[-2].state.weights).double()
    assert float(moved.std()) == pytest.approx(1.0, rel=0.3)


def test_the_norm_survives_a_stop(tmp_path):
    class Interrupted(Exception):
        pass

    def stop(event):
        if event.round == 3:
            raise Interrupted

    changes = {"stages": ("clip:0.5:quantile=0.5", "weigh:equal", "noise:1.0")}
    expected = fedavg.run(private(**changes))
    with pytest.raises(Interrupted):
        fedavg.run(private(**changes), tmp_path / "run", stop)
    got = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data())
    assert got.summary.model_sha256 == expected.summary.model_sha256


PUBLISH = """
import sys
import fedavg
from fedavg.engine.model import model_sha256
from pathlib import Path
from toys import TOY, toy_data, toy_plan

run, published = Path(sys.argv[1]), open(sys.argv[2], "a")

def publish(event):
    published.write(f"{event.round} {model_sha256(event.state.weights)}\\n")
    published.flush()

if (run / "run.json").exists():
    fedavg.resume(run, publish, task=TOY, data=toy_data())
else:
    stages = ("clip:0.5", "weigh:equal", "noise:2.0")
    options = {"sampling": "poisson", "noise_source": "os", "workers": 1, "eval_every": 10}
    plan = toy_plan(stages=stages, dp_delta=1e-3, rounds=60, **options)
    fedavg.run(plan, run, publish)
"""


def publish_until_killed(run, published, after):
    """Start or go on, and kill -9 so many published rounds later; True if the run came to its end."""
    out, err = run.with_name("out"), run.with_name("err")
    process = programs.start_script(PUBLISH, run, published, out=out, err=err, prepare=[os.setsid])
    before = lines_of(published)
    while process.is_alive():
        if len(lines_of(published)) - len(before) >= after:
            time.sleep(random.Random(after).random() * 0.02)
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.001)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), err.read_text()
    return process.exitcode == 0


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def test_kill_9_at_any_moment_never_noises_a_round_twice(tmp_path):
    """Noise from the system's entropy: a round that is done again would have other weights."""
    run, published = tmp_path / "run", tmp_path / "published"
    finished = False
    for after in (7, 23, 200):
        finished = publish_until_killed(run, published, after)
    assert finished
    by_round = {}
    for line in lines_of(published):
        round, digest = line.split()
        assert by_round.setdefault(int(round), digest) == digest, f"round {round} was published with two noises"
    rows = RunDir(run).rows()
    assert [row["ledger"]["round"] for row in rows] == list(range(1, 61))
    assert sorted(by_round)[-1] == 60
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 60


def stopped_with_entropy(tmp_path):
    class Interrupted(Exception):
        pass

    def stop(event):
        if event.round == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        fedavg.run(private(noise_source="os"), tmp_path / "run", stop)
    return tmp_path / "run"


def test_a_row_that_was_lost_is_in_the_checkpoint(tmp_path):
    """Killed after the checkpoint and before the row: the round counts, with its noise and its cost."""
    run = stopped_with_entropy(tmp_path)
    metrics = run / "metrics.jsonl"
    whole = metrics.read_text().splitlines(keepends=True)
    weights = load_file(max((run / "checkpoints").iterdir()))["weights"]
    metrics.write_text("".join(whole[:2]) + whole[2][:30])
    seen = []
    fedavg.resume(run, seen.append, task=TOY, data=toy_data())
    assert seen[0].round == 3
    assert torch.equal(seen[0].state.weights, weights)
    assert metrics.read_text().splitlines(keepends=True)[:3] == whole


def test_a_lost_checkpoint_of_a_published_round_ends_the_run(tmp_path):
    run = stopped_with_entropy(tmp_path)
    before = (run / "metrics.jsonl").read_bytes()
    max((run / "checkpoints").iterdir()).write_bytes(b"torn")
    with pytest.raises(RunDirError, match="rounds up to 3 on record.*would be published twice"):
        fedavg.resume(run, task=TOY, data=toy_data())
    assert (run / "metrics.jsonl").read_bytes() == before
