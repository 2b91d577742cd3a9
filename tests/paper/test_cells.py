from collections import Counter
from math import inf

import pytest

from fedavg.paper.cells import ALL_CELLS, CELLS, baseline, first_guess, per_round, with_unit_pixels
from fedavg.paper.choose import choose
from fedavg.plan import Plan


def cell(table, only):
    (found,) = choose([c for c in CELLS if c.table == table], [only])
    return found


def test_there_are_97_cells():
    assert len(CELLS) == 97
    assert Counter(c.table for c in CELLS) == {1: 40, 2: 30, 3: 9, 4: 18}
    assert Counter((c.table, c.model) for c in CELLS) == {
        (1, "2nn"): 20, (1, "cnn"): 20, (2, "cnn"): 18, (2, "lstm"): 12, (3, "cifar"): 9, (4, "2nn"): 18,
    }  # fmt: skip
    assert len({c.name for c in CELLS}) == 97
    assert sum(c.paper is None for c in CELLS) == 6


@pytest.mark.parametrize(
    ("table", "only", "paper", "target"),
    [
        (1, "model=2nn,partition=iid,C=0,B=inf", 1455, 0.97),
        (1, "model=2nn,partition=iid,C=0.1,B=10", 87, 0.97),
        (1, "model=2nn,partition=non-iid,C=0,B=inf", 4278, 0.97),
        (1, "model=2nn,partition=non-iid,C=1,B=10", 380, 0.97),
        (1, "model=2nn,partition=non-iid,C=0.5,B=∞", None, 0.97),
        (1, "model=cnn,partition=iid,C=0.5,B=inf", 164, 0.99),
        (1, "model=cnn,partition=non-iid,C=0.5,B=10", 261, 0.99),
        (1, "model=cnn,partition=non-iid,C=1,B=inf", None, 0.99),
        (2, "model=cnn,partition=iid,E=1,B=inf", 626, 0.99),
        (2, "model=cnn,partition=non-iid,E=20,B=50", 426, 0.99),
        (2, "model=lstm,partition=iid,E=1,B=50", 1635, 0.54),
        (2, "model=lstm,partition=non-iid,E=5,B=10", 41, 0.54),
        (3, "algorithm=sgd,target=0.85", 99000, 0.85),
        (3, "algorithm=fedsgd,target=0.85", None, 0.85),
        (3, "algorithm=fedavg,target=0.8", 280, 0.80),
        (4, "partition=iid,E=20,B=10", 32, 0.97),
        (4, "partition=non-iid,E=10,B=50", 881, 0.97),
    ],
)
def test_the_papers_numbers(table, only, paper, target):
    assert cell(table, only).paper == paper
    assert cell(table, only).target == target


def test_u_is_the_papers():
    assert [round(c.setting.updates, 1) for c in CELLS if c.table == 4 and c.setting.partition == "iid"] == [
        1, 10, 12, 20, 60, 120, 240, 600, 1200,
    ]  # fmt: skip
    lstm = [round(c.setting.updates, 1) for c in CELLS if c.model == "lstm" and c.setting.partition == "iid"]
    assert lstm == pytest.approx([1, 1.5, 5, 7.4, 7.4, 37.1], abs=0.15)  # 74.4 lines per role, the paper 74.2


def test_every_cell_has_its_plan():
    for c in CELLS:
        plan = c.plan(0.1, seed=3)
        assert isinstance(plan, Plan)
        assert (plan.lr, plan.seed, plan.C, plan.workers) == (0.1, 3, c.setting.C, 1)
        assert plan.target is None, "runs are stopped from the outside, so that cells share them"
        assert plan.rounds >= c.allowance
        assert c.allowance % c.setting.eval_every == 0
        assert first_guess(c.setting) in range(-12, 8)


def test_plans_of_some_cells():
    two_nn = cell(1, "model=2nn,partition=non-iid,C=0,B=inf").plan(0.215)
    assert (two_nn.task, two_nn.data, two_nn.partition, two_nn.E, two_nn.eval_every) == (
        "mnist-2nn", "mnist:pixels=centred", "shards", Plan(E=1).E, 2,
    )  # fmt: skip
    assert two_nn.work(1).batch == inf
    lstm = cell(2, "model=lstm,partition=non-iid,E=5,B=10").plan(1.47)
    assert (lstm.task, lstm.data, lstm.partition, lstm.eval_every) == ("shakespeare-lstm", "shakespeare", "natural", 1)
    fedavg = cell(3, "algorithm=fedavg,target=0.8").plan(0.1)
    assert (fedavg.algorithm, fedavg.work(1).epochs, fedavg.work(1).batch) == ("fedavg", 5, 50)
    sgd = cell(3, "algorithm=sgd,target=0.8").plan(0.1)
    assert (sgd.algorithm, sgd.work(1).batch, sgd.eval_every) == ("sgd", 100, 100)


def test_on_cifar_the_rate_has_decayed_once_when_as_many_clients_came_as_there_are():
    fedavg, fedsgd = (cell(3, f"algorithm={name},target=0.8").plan(0.1) for name in ("fedavg", "fedsgd"))
    assert (fedavg.work(1).lr, fedavg.work(11).lr, fedavg.work(21).lr) == pytest.approx((0.1, 0.099, 0.09801))
    assert (fedsgd.work(1).lr, fedsgd.work(11).lr) == pytest.approx((0.1, 0.09934))
    assert per_round(0.99, 1.0) == 0.99
    assert per_round(0.99, 0.0) ** 100 == pytest.approx(0.99)  # one client a round


def test_equal_settings_of_different_tables_share_their_runs():
    one, four = cell(1, "model=2nn,partition=iid,C=0.1,B=10"), cell(4, "partition=iid,E=1,B=10")
    assert one.plan(0.215).digest == four.plan(0.215).digest
    assert one.setting.key == four.setting.key
    assert one.setting.key != cell(4, "partition=non-iid,E=1,B=10").setting.key
    assert len({c.setting.key for c in CELLS if c.table == 3}) == 3


def test_how_long_a_run_may_take():
    assert cell(4, "partition=iid,E=1,B=inf").allowance == 3 * 1468
    assert cell(4, "partition=iid,E=20,B=10").allowance == 100, "3 x 32, but no less than 100"
    assert cell(1, "model=2nn,partition=iid,C=0.5,B=inf").allowance == 2 * 1658, "blank: 2 x the longest of the column"
    assert cell(1, "model=2nn,partition=non-iid,C=1,B=inf").allowance == 2 * 4278
    assert cell(3, "algorithm=fedsgd,target=0.85").allowance == 2 * 6600
    assert cell(1, "model=2nn,partition=iid,C=0,B=inf").allowance == 4365, "3 x 1455, evaluated every 5 rounds"


def test_speedups_are_against_the_papers_row():
    assert baseline(cell(1, "model=cnn,partition=iid,C=0.5,B=10")).paper == 50
    assert baseline(cell(2, "model=lstm,partition=non-iid,E=5,B=10")).paper == 3906
    assert baseline(cell(3, "algorithm=fedavg,target=0.82")).paper == 31000
    assert baseline(cell(4, "partition=non-iid,E=20,B=10")).paper == 1817
    assert all(baseline(baseline(c)) == baseline(c) for c in CELLS)


def test_the_2nn_has_the_same_cells_with_pixels_in_0_to_1():
    units = ALL_CELLS[len(CELLS) :]
    assert len(units) == 38
    assert {c.plan(0.1).data for c in units} == {"mnist"}
    centred = cell(1, "model=2nn,partition=iid,C=0.1,B=10")
    unit = with_unit_pixels(centred)
    assert (unit.paper, unit.target, unit.allowance) == (centred.paper, centred.target, centred.allowance)
    assert unit.command == "fedavg paper table1 --only model=2nn,partition=iid,C=0.1,B=10,pixels=unit"
    assert baseline(unit) == with_unit_pixels(baseline(centred))
    assert len({c.name for c in ALL_CELLS}) == 97 + 38
    assert with_unit_pixels(cell(2, "model=lstm,partition=iid,E=1,B=10")) is None


def test_the_records_with_pixels_in_0_to_1_keep_their_digests():
    """Made before there was a choice: their plans must still be found."""
    unit = with_unit_pixels(cell(1, "model=2nn,partition=iid,C=0.1,B=10"))
    assert unit.plan(0.215).digest == "d9f7741b0790a8e4"
