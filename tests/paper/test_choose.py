import pytest

from fedavg.errors import FedAvgError
from fedavg.paper.cells import CELLS
from fedavg.paper.choose import choose, choose_cells


def test_all_conditions_of_a_filter_must_hold_and_any_filter_will_do():
    assert choose(CELLS, []) == list(CELLS)
    one = choose(CELLS, ["model=2nn,partition=iid,C=0.10,B=10,E=1"])
    assert [c.name for c in one] == ["table1 model=2nn,partition=iid,C=0.1,B=10", "table4 partition=iid,E=1,B=10"]
    assert len(choose(CELLS, ["model=lstm", "model=cifar"])) == 12 + 9
    assert len(choose(CELLS, ["B=∞,model=2nn"])) == len(choose(CELLS, ["model=2NN, B=inf"])) == 10 + 6


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("colour=red", "--only: got 'colour=red' in 'colour=red'; expected KEY=VALUE,... with keys of model,"),
        ("model", "--only: got 'model' in 'model'; expected KEY=VALUE"),
        ("C=0.3", "--only: got 'C=0.3', which matches nothing; expected values such as model 2nn, cnn, lstm, cifar;"),
    ],
)
def test_a_mistake_is_told(only, message):
    with pytest.raises(FedAvgError) as error:
        choose(CELLS, [only])
    assert str(error.value).startswith(message)


def test_cells_with_pixels_in_0_to_1_are_chosen_by_name_only():
    assert len(choose_cells(4, [])) == 18
    assert {c.setting.model.pixels for c in choose_cells(4, [])} == {"centred"}
    (unit,) = choose_cells(4, ["partition=iid,E=1,B=10,pixels=unit"])
    assert unit.plan(0.1).data == "mnist"
