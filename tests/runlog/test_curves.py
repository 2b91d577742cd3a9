import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.runlog.curves import monotone, rounds_to_target


def test_monotone_is_the_best_so_far():
    assert monotone([0.1, 0.5, 0.3, 0.6]) == [0.1, 0.5, 0.5, 0.6]
    assert monotone([]) == []


@pytest.mark.parametrize(
    ("rounds", "accuracy", "target", "expected"),
    [
        ([1, 2, 3], [0.90, 0.96, 0.98], 0.97, 2.5),
        ([10, 20], [0.90, 0.98], 0.92, 12.5),  # evaluated every ten rounds
        ([1, 2, 3, 4], [0.5, 0.8, 0.6, 0.9], 0.85, 3.5),  # from the best so far (0.8), not from the last (0.6)
        ([1, 2], [0.5, 0.97], 0.97, 2.0),
        ([1, 2], [0.98, 0.99], 0.97, 1.0),
        ([1, 2], [0.5, 0.6], 0.97, None),
        ([], [], 0.97, None),
    ],
)
def test_rounds_to_target_by_hand(rounds, accuracy, target, expected):
    got = rounds_to_target(rounds, accuracy, target)
    assert got == (pytest.approx(expected) if expected is not None else None)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_higher_target_never_takes_fewer_rounds(accuracy, a, b):
    rounds = list(range(1, len(accuracy) + 1))
    low, high = (rounds_to_target(rounds, accuracy, t) for t in sorted((a, b)))
    assert high is None or (low is not None and low <= high)
