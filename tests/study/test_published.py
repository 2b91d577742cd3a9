"""Studies of published results: their settings, how a cell is made of its runs, and commands that go on."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedavg import PlanError, train
from fedavg.campaign.execute import Outlay
from fedavg.campaign.records import CAP, DIVERGED, Record, Records
from fedavg.cli import cli
from fedavg.engine.model import Model
from fedavg.study import niid, reducers, robust
from fedavg.study.cells import FoundCell, PublishedCell, found, last, pursue
from fedavg.testing import check_algorithm
from toys import line_plan


def record(plan, values, rounds=None, stopped=CAP):
    return Record(
        plan=plan, rounds=tuple(range(1, len(values) + 1)), values=tuple(values), train_loss=(0.0,) * len(values),
        sample_rounds=(), sample_loss=(), rounds_run=plan.rounds if rounds is None else rounds, stopped=stopped,
        reason="", seconds=1.0, date="2026-01-01", command="", engine="graph", versions={},
    )  # fmt: skip


def test_distributed_sgd_keeps_a_damped_momentum_on_each_client():
    """∇F(w) at 2 by hand: 2 (w - 1) = 2 for client 0, 4 w - 4/3 = 20/3 for client 1, by n_k: (2 + 20) / 4 = 5.5."""
    plan = line_plan(algorithm=robust.DSGD(0.9), E=1, rounds=2)
    first, second = (event.state.weights.item() for event in list(train(plan))[1:])
    assert first == pytest.approx(2 - 0.1 * 0.1 * 5.5, rel=1e-5)
    gradient = (2 * (first - 1) + 3 * (4 * first - 4 / 3)) / 4
    assert second == pytest.approx(first - 0.1 * (0.9 * 0.1 * 5.5 + 0.1 * gradient), rel=1e-5)


def test_weight_decay_is_the_servers():
    plain, decayed = (
        list(train(line_plan(algorithm=robust.DSGD(0.0, decay), E=1, rounds=1)))[-1].state.weights.item()
        for decay in (0.0, 0.5)
    )
    assert plain - decayed == pytest.approx(0.1 * 0.5 * 2, rel=1e-4)


def test_distributed_sgd_passes_the_kit():
    check_algorithm(robust.DSGD(0.5), E=1, rounds=40, lr=0.3)


def test_distributed_sgd_takes_one_batch_a_round():
    with pytest.raises(PlanError, match="dsgd: got E=2; expected E=1"):
        next(iter(train(line_plan(algorithm=robust.DSGD(), E=2))))


@pytest.mark.parametrize("gamma", robust.GAMMAS)
def test_honest_clients_share_four_fifths_by_gamma_and_liars_hold_the_rest(gamma):
    labels = np.repeat(np.arange(10), 100)
    parts = robust.Similar(gamma).deal(labels, 13, np.random.default_rng(0))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert sum(map(len, parts[:10])) == 800
    in_order = [len(set(labels[part].tolist())) for part in parts[:10]]
    if gamma == 0:
        assert max(in_order) <= 3
    if gamma == 1:
        assert min(in_order) == 10


def test_the_models_have_the_published_sizes():
    assert len(Model(robust.CNN, 0).vector) == 431_080
    assert len(Model(niid.MNIST, 0).vector) == 44_426
    assert len(Model(niid.CIFAR, 0).vector) == 62_006
    assert niid.CIFAR.build()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_cell_is_the_better_rule_under_the_worst_attack():
    cell = robust.cell_of(0.33, 3)
    highest = [0.9, 0.5, 0.8, 0.7, 0.6, 0.95]  # the geometric median: 0.5 at the worst; the trimmed mean: 0.6
    known = [record(plan, [0.2, value, 0.1]) for plan, value in zip(cell.plans, highest, strict=True)]
    assert cell.value(known) == 0.6
    assert [plan.attackers for plan in cell.plans] == [(10, 11, 12)] * 6
    assert {plan.clients for plan in cell.plans} == {13}


def test_the_heat_map_has_16_cells_of_6_runs_and_the_tolerances_of_the_comparison():
    cells = robust.cells()
    assert len({cell.name for cell in cells}) == 16
    assert len({plan.digest for cell in cells for plan in cell.plans}) == 96
    assert {cell.within for cell in cells if cell.published > 0.9} == {0.02}
    assert {cell.within for cell in cells if cell.published <= 0.9} == {0.1}
    assert [cell.name for cell in robust.cells([1.0], [2])] == ["gamma 1, f 2"]


def test_a_cell_counts_when_all_its_runs_came_to_their_end(tmp_path):
    cell, store = robust.cell_of(1.0, 1), Records(tmp_path)
    assert found(cell, store).ours is None
    for plan in cell.plans[:5]:
        store.put(record(plan, [0.98]))
    assert found(cell, store, partial=True).ours is None
    store.put(record(cell.plans[5], [0.97], rounds=400))
    assert found(cell, store).ours is None
    half = found(cell, store, partial=True)
    assert (half.ours, half.rounds, half.holds) == (0.98, (400, 800), None)
    store.put(record(cell.plans[5], [0.97, 0.975]))
    whole = found(cell, Records(tmp_path))
    assert (whole.ours, whole.rounds, whole.holds) == (0.98, (800, 800), True)


def test_a_run_that_diverged_counts_as_guessing(tmp_path):
    cell, store = reducers.cells()[0], Records(tmp_path)
    store.put(record(cell.plans[0], [], rounds=3, stopped=DIVERGED))
    assert found(cell, store).ours == 0.1


def test_every_plan_of_the_own_table_can_be_begun():
    """Reducers are set to the liars there are: none of the 440 is refused for more than it stands."""
    from fedavg.robust import make_defence

    cells = reducers.cells()
    assert len({cell.name for cell in cells}) == len({cell.plans[0].digest for cell in cells}) == 440
    for cell in cells:
        (plan,) = cell.plans
        liars = round(float(plan.attackers) * reducers.CLIENTS)
        make_defence(plan.reducer).check(reducers.CLIENTS, liars)


def test_in_the_figure_of_the_own_table_more_is_better_everywhere():
    """A trigger that works on 99 of 100 images is withstood on one; accuracy stays what it is."""
    cell = reducers.cells()[0]
    assert reducers.withstood(FoundCell(cell, 0.99, (30, 30)), "backdoor:0:boost=5.0")[1] == pytest.approx(0.01)
    assert reducers.withstood(FoundCell(cell, None, (0, 30)), "backdoor:0:boost=5.0")[1] is None
    assert reducers.withstood(FoundCell(cell, 0.99, (30, 30)), "signflip:3.0") == ("signflip", 0.99)


def test_the_cells_of_niid_bench_are_those_that_are_asked_for():
    assert len(niid.cells()) == 20
    (cell,) = niid.cells(["mnist"], ["labels:2"], ["fednova"])
    assert (cell.published, cell.plans[0].algorithm) == (96.65, "fednova")
    assert math.isnan(niid.cell_of("mnist", "labels:2", "feddyn").published)
    assert cell.value([record(cell.plans[0], [0.5, 0.9651])]) == 96.51


def test_niid_bench_has_the_published_settings():
    """Of baselines/niid_bench/conf in Flower's repository: *_base.yaml."""
    plan = niid.plan_of("cifar10", "iid", "fedprox")
    assert (plan.clients, plan.C, plan.E, plan.B, plan.lr, plan.rounds) == (10, 1.0, 10, 64, 0.01, 50)
    assert (plan.optimizer, plan.algorithm) == ("sgd:momentum=0.9:weight_decay=1e-05", "fedprox:0.01")
    image = torch.arange(3 * 32 * 32, dtype=torch.uint8).view(1, 3, 32, 32)
    assert torch.equal(niid.CIFAR.prepare(image), image / 255)


def test_images_are_cropped_from_their_reflection_and_mirrored():
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(200, 1, 8, 8)
    seen = niid.cropped(image, np.random.default_rng(0)).mul(255).round()
    reflected = np.pad(np.arange(64).reshape(8, 8), 4, mode="reflect")
    crops = [reflected[top : top + 8, left : left + 8] for top in range(9) for left in range(9)]
    possible = {
        each.tobytes() for crop in crops for each in (crop.astype(np.float32), crop[:, ::-1].astype(np.float32))
    }
    found = {each[0].numpy().tobytes() for each in seen}
    assert found <= possible
    assert len(found) > 80  # of 162


def test_a_study_goes_on_where_it_was(tmp_path):
    """Real runs in processes of their own: one round, then two more."""
    plan = replace(reducers.plan_of("median", "signflip:3.0", 0.1), rounds=3, eval_every=1)
    cell = PublishedCell("small", "small", (plan,), math.nan, 0.0, lambda known: last(known[0]))
    told: list[str] = []
    pursue([cell], Records(tmp_path / "records"), tmp_path / "runs", Outlay(1), told.append, stage=2)
    result = found(cell, Records(tmp_path / "records"))
    assert result.rounds == (3, 3)
    assert result.ours == Records(tmp_path / "records").find(plan).values[-1] > 0.1
    assert sum("up to" in line for line in told) == 2
    before = len(told)
    pursue([cell], Records(tmp_path / "records"), tmp_path / "runs", Outlay(1), told.append, stage=None)
    assert len(told) == before  # nothing is run again


@pytest.mark.parametrize("command", [["robust"], ["robust", "--own"], ["niid"]])
def test_a_study_shows_what_is_on_record_and_what_is_left(command, tmp_path):
    options = ["--show", "--json", "--out", str(tmp_path), "--records", str(tmp_path / "records")]
    shown = CliRunner().invoke(cli, ["study", *command, *options], catch_exceptions=False)
    cells = json.loads(shown.stdout)
    assert all(cell["ours"] is None for cell in cells)
    assert "left: fedavg study" in shown.stderr
    files = {path.name for path in Path(tmp_path).rglob("*.*")}
    name = "niid" if command == ["niid"] else "robust_own" if len(command) == 2 else "robust"
    assert {f"{name}.md", f"{name}.json", f"{name}.png", f"{name}.svg"} <= files


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["robust", "--gamma", "0.5"], "expected one of 1, 0.66, 0.33, 0"),
        (["robust", "--own", "--faults", "1"], "--own has no --gamma"),
        (["niid", "--algorithm", "fedsgd"], "no cell has these values"),
    ],
)
def test_what_a_study_does_not_have_is_refused(given, message):
    refused = CliRunner().invoke(cli, ["study", *given, "--show"])
    assert refused.exit_code == 2
    assert message in refused.output
