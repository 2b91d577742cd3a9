"""Places in one tensor, seen from another that has the same numbers in another order."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.engine.copies import Fragment, disjoint, through


def places(start, dimensions):
    """Where each number is, in the order of its indices."""
    steps = [[i * stride for i in range(size)] for size, stride, *_ in dimensions]
    return [start + sum(parts) for parts in itertools.product(*steps)]


@given(st.data())
def test_the_other_side_of_a_copy_is_what_pytorch_copies(data):
    """A dense tensor is turned and copied; a view of it is then found in the copy with the same numbers."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    x = torch.arange(torch.Size(shape).numel()).view(shape)
    copy = x.permute(order).contiguous()
    table = [(n, s, copy.stride(order.index(d))) for d, (n, s) in enumerate(zip(shape, x.stride(), strict=True))]
    view = x
    for d in range(len(shape)):
        first = data.draw(st.integers(0, shape[d] - 1))
        view = view.narrow(d, first, data.draw(st.integers(1, shape[d] - first)))
    wanted = [(n, s, 0) for n, s in zip(view.shape, view.stride(), strict=True)]
    start, found = through(view.storage_offset(), wanted, table)
    assert [copy.flatten()[at].item() for at in places(start, found)] == view.flatten().tolist()


def test_a_dimension_that_goes_over_two_is_split_and_what_lies_alike_is_one():
    heads = [(10, 2048, 64), (4, 512, 16), (32, 16, 640), (16, 1, 1)]  # (10, 4, 32, 16) in the order (32, 10, 4, 16)
    assert through(0, [(40, 512, 7), (16, 1, 1)], heads) == (0, [(40, 16, 7), (16, 1, 1)])  # 4 x 16 = 64
    apart = [(10, 2048, 1), (4, 512, 10), (32, 16, 640), (16, 1, 40)]
    assert through(512, [(32, 16, 0), (16, 1, 0)], apart) == (10, [(32, 640, 0), (16, 40, 0)])
    assert through(0, [(40, 512, 7)], apart) == (0, [(10, 1, 28), (4, 10, 7)])


def test_what_has_no_place_on_the_other_side_is_not_found():
    turned = [(3, 4, 1), (4, 1, 3)]
    assert through(0, [(6, 2, 0)], turned) == (0, [(3, 1, 0), (2, 6, 0)])
    assert through(1, [(4, 1, 0)], turned) is None  # over the end of a row
    assert through(0, [(4, 3, 0)], turned) is None  # from row to row and along them at once
    assert through(12, [(1, 1, 0)], turned) is None  # behind the end
    assert through(0, [(2, 1, 0)], [(2, 1, 5), (2, 1, 9)]) is None  # places that are two things at once
    assert through(0, [(2, 1, 0)], [(2, 0, 5)]) is None  # one number in two places


def test_pieces_one_after_the_other_are_disjoint():
    rows = [Fragment(start, "v", 0, ((2, 3, 1), (3, 1, 2)), True) for start in (0, 6, 12)]
    assert disjoint(rows)
    assert (rows[0].count, rows[0].end) == (6, 6)
    assert not disjoint([rows[0], Fragment(5, "v", 0, ((1, 1, 1),), True)])
