import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import Ragged, padded
from fedavg.errors import DataError

rows = st.lists(st.lists(st.integers(-9, 9), max_size=6).map(torch.tensor).map(lambda t: t.long()), max_size=6)


def listed(ragged):
    return [part.tolist() for part in ragged.values.split(ragged.lengths.tolist())]


@given(rows, st.data())
def test_rows_are_those_of_a_list(values, data):
    ragged = (
        Ragged.of(values) if values else Ragged(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    )
    plain = [value.tolist() for value in values]
    first, last = data.draw(st.integers(0, 7)), data.draw(st.integers(0, 7))
    assert listed(ragged[first:last]) == plain[first:last]
    if plain:
        chosen = data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=5))
        assert listed(ragged.index_select(0, torch.tensor(chosen, dtype=torch.int64))) == [plain[i] for i in chosen]
        assert listed(Ragged.joined([ragged, ragged])) == plain + plain


def test_padding_and_mask():
    ragged = Ragged.of([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])])
    assert ragged.padded(-1, multiple=4).tolist() == [[1, 2, 3, -1], [4, -1, -1, -1]]
    assert ragged.mask(4).tolist() == [[True, True, True, False], [True, False, False, False]]
    x, y = padded(0, -100, multiple=1)({"words": ragged, "n": torch.tensor([3, 1])}, ragged)
    assert x["words"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert x["n"].tolist() == [3, 1]
    assert y.tolist() == [[1, 2, 3], [4, -100, -100]]


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(DataError, match="add up to 3; expected 4"):
        Ragged(torch.zeros(4), torch.tensor([1, 2]))
