"""Packed rows hold the same texts, each whole and from its start, in fewer places."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedavg.metrics import IGNORE
from fedavg.tasks.packing import LENGTHS, pack

BEGIN, PADDING, WIDTH = 1, 0, 20


def batch(*texts: tuple[int, bool]) -> tuple[Tensor, Tensor]:
    """Texts of such lengths, each of its own ids; without `begin` where they go on with another row's."""
    x, y = torch.full((len(texts), WIDTH), PADDING), torch.full((len(texts), WIDTH), IGNORE)
    for row, (length, begins) in enumerate(texts):
        ids = torch.arange(length + 1) + 100 * (row + 1)
        x[row, :length], y[row, :length] = ids[:-1], ids[1:]
        if begins and length:
            x[row, 0] = BEGIN
    return x, y


def texts_of(x: Tensor, y: Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The texts of all rows, inputs and targets: a row is cut at every `begin`, and ends with its last prediction."""
    found = []
    for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
        cuts = [0, *(i for i in range(1, len(inputs)) if inputs[i] == BEGIN), len(inputs)]
        for start, stop in pairwise(cuts):
            end = max((i + 1 for i in range(start, stop) if targets[i] != IGNORE), default=start)
            found.append((tuple(inputs[start:end]), tuple(targets[start:end])))
    return sorted(text for text in found if text[0])


def test_two_in_a_row_by_hand() -> None:
    x, y = pack(*batch((3, True), (12, True), (4, True), (9, True)), BEGIN, PADDING)
    assert x.tolist() == [
        [1, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 1, 101, 102, 0],
        [1, 401, 402, 403, 404, 405, 406, 407, 408, 1, 301, 302, 303, 0, 0, 0],
    ]
    assert y[0].tolist() == [*range(201, 213), 101, 102, 103, IGNORE]
    assert y[1].tolist() == [*range(401, 410), *range(301, 305), IGNORE, IGNORE, IGNORE]


def test_a_piece_that_goes_on_is_the_first_of_its_row() -> None:
    x, _ = pack(*batch((3, False), (12, True), (4, False), (2, True)), BEGIN, PADDING)
    assert x[:, 0].tolist() == [300, 100]
    assert x[:, 3:5].tolist() == [[303, 1], [1, 201]]


@pytest.mark.parametrize(("lengths", "left"), [((17, 18), 20), ((3, 9), 16), ((3,), 8), ((0, 0), 8)])
def test_where_pairs_save_nothing_rows_are_only_cut(lengths: tuple[int, ...], left: int) -> None:
    whole = batch(*((length, False) for length in lengths))
    for packed, ids in zip(pack(*whole, BEGIN, PADDING), whole, strict=True):
        assert torch.equal(packed, ids[:, :left])


@given(st.lists(st.tuples(st.integers(0, WIDTH), st.booleans()), min_size=1, max_size=12))
def test_the_same_texts_in_no_more_places(texts: list[tuple[int, bool]]) -> None:
    x, y = batch(*texts)
    packed_x, packed_y = pack(x, y, BEGIN, PADDING)
    assert texts_of(packed_x, packed_y) == texts_of(x, y)
    assert packed_x.shape == packed_y.shape
    assert packed_x.numel() <= x.numel()
    assert packed_x.shape[1] % LENGTHS == 0 or packed_x.shape[1] == WIDTH
    assert len(packed_x) <= len(x)


def test_most_of_what_is_left_are_predictions() -> None:
    """Lines of 43 in 80, as in the plays: half of the places without packing, nine tenths with it."""
    lengths = torch.randint(10, 77, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    x, y = torch.full((50, 80), PADDING), torch.full((50, 80), IGNORE)
    for row, length in enumerate(lengths):
        x[row, 0], y[row, :length] = BEGIN, 7
    _, packed = pack(x, y, BEGIN, PADDING)
    assert (y != IGNORE).float().mean() < 0.6
    assert (packed != IGNORE).float().mean() > 0.85
