import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedavg.data.sequences import IGNORE, pieces_of, windows

BEGIN, PADDING = 100, 101


def test_two_texts_by_hand() -> None:
    x, y = windows(np.array([1, 2, 3, 4, 5, 6, 7]), np.array([5, 2]), 3, BEGIN, PADDING)
    assert x.tolist() == [[BEGIN, 1, 2], [3, 4, PADDING], [BEGIN, 6, PADDING]]
    assert y.tolist() == [[1, 2, 3], [4, 5, IGNORE], [6, 7, IGNORE]]


@given(st.lists(st.lists(st.integers(0, 50), max_size=12), max_size=8), st.integers(1, 5))
def test_every_token_is_predicted_once_from_the_one_before(texts: list[list[int]], unroll: int) -> None:
    lengths = np.array([len(text) for text in texts], np.int64)
    tokens = np.array([token for text in texts for token in text], np.int64)
    x, y = windows(tokens, lengths, unroll, BEGIN, PADDING)
    real = y != IGNORE
    assert y[real].tolist() == tokens.tolist()
    assert x[real].tolist() == [before for text in texts for before in ([BEGIN, *text][:-1])]
    assert set(x[~real].tolist()) <= {PADDING}
    assert len(x) == pieces_of(lengths, unroll).sum()
