import os

import numpy as np
import pytest
import torch

from fedavg.data.federated import ArrayData, pooled
from fedavg.errors import DataError
from fedavg.types import Examples


def test_a_client_holds_its_rows_in_the_order_given(tiny: ArrayData) -> None:
    assert tiny.sizes.tolist() == [3, 4, 0]
    assert len(tiny) == 3
    assert tiny.client(0).x.tolist() == [[12, 13], [2, 3], [6, 7]]
    assert tiny.client(0).y.tolist() == [0, 1, 0]
    assert tiny.client(1).x.tolist() == [[0, 1], [4, 5], [8, 9], [10, 11]]
    assert len(tiny.client(2)) == 0
    assert tiny.client(2).x.shape == (0, 2)
    assert len(tiny.test) == 2


def test_a_client_is_a_view_and_dtypes_stay(tiny: ArrayData) -> None:
    assert tiny.client(1).x.data_ptr() == tiny.client(0).x.data_ptr() + 3 * 2
    assert tiny.client(0).x.dtype == torch.uint8
    assert tiny.client(0).y.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool, torch.int16])
def test_rows_of_any_dtype_are_moved(dtype: torch.dtype) -> None:
    x = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 1.0]]]).to(dtype)
    data = ArrayData("any", x, torch.tensor([0, 1, 2]), [np.array([2, 0]), np.array([1])], Examples(x, x))
    assert torch.equal(data.client(0).x, x[[2, 0]])
    assert data.client(0).x.dtype == dtype


def test_rows_already_in_order_are_not_copied() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4)
    data = ArrayData("in order", x, y, [np.arange(3), np.arange(3, 4)], Examples(x, y))
    assert data.client(0).x.data_ptr() == x.data_ptr()


def test_fingerprint_follows_content_partition_and_test() -> None:
    x, y, test = torch.arange(6.0), torch.arange(6), Examples(torch.zeros(1), torch.zeros(1))

    def digest(x: torch.Tensor, parts: list[list[int]], test: Examples) -> str:
        return ArrayData("a", x, y, [np.array(part) for part in parts], test).fingerprint

    base = digest(x, [[0, 1, 2], [3, 4, 5]], test)
    assert base == digest(x.clone(), [[0, 1, 2], [3, 4, 5]], test)
    assert len(base) == 32
    others = [
        digest(x, [[0, 1], [2, 3, 4, 5]], test),
        digest(x, [[1, 0, 2], [3, 4, 5]], test),
        digest(x + 1, [[0, 1, 2], [3, 4, 5]], test),
        digest(x, [[0, 1, 2], [3, 4, 5]], Examples(torch.ones(1), torch.zeros(1))),
    ]
    assert len({base, *others}) == 5


def test_a_fork_reads_the_same(tiny: ArrayData) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(tiny.client(1).x.flatten().tolist()))
        os._exit(0)
    os.waitpid(child, 0)
    assert list(os.read(reader, 100)) == [0, 1, 4, 5, 8, 9, 10, 11]
    os.close(reader)
    os.close(writer)


def test_pooled_is_one_client_in_the_order_of_clients(tiny: ArrayData) -> None:
    whole = pooled(tiny)
    assert whole.sizes.tolist() == [7]
    assert whole.client(0).y.tolist() == [0, 1, 0, 0, 2, 1, 2]
    assert whole.fingerprint != tiny.fingerprint
    assert torch.equal(whole.test.x, tiny.test.x)


def test_mistakes_are_named(tiny: ArrayData) -> None:
    x, y = torch.zeros(3, 2), torch.zeros(3)
    test = Examples(x, y)
    with pytest.raises(DataError, match="no client 3: expected 0 to 2"):
        tiny.client(3)
    with pytest.raises(DataError, match="no client -1"):
        tiny.client(-1)
    with pytest.raises(DataError, match=r"training x has shape \(3, 2\) torch.float32 and y \(2,\)"):
        ArrayData("a", x, y[:2], [], test)
    with pytest.raises(DataError, match="test x has shape"):
        ArrayData("a", x, y, [], Examples(x, y[:1]))
    with pytest.raises(DataError, match="client 1 has rows outside 0 to 2"):
        ArrayData("a", x, y, [np.array([0]), np.array([3])], test)


def test_arrays_and_lists_become_tensors() -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1], np.int32)
    data = ArrayData("mine", x, y, [[2, 0], [1], []], (x[:1], [1]))
    assert data.sizes.tolist() == [2, 1, 0]
    assert data.client(0).x.dtype == torch.float32
    assert data.client(0).y.tolist() == [1, 0]
    assert data.client(0).y.dtype == torch.int64
    assert data.test.y.tolist() == [1]
    parts = [np.array([2, 0]), np.array([1]), np.array([], int)]
    test = Examples(torch.tensor(x[:1]).float(), torch.tensor([1]))
    tensors = ArrayData("mine", torch.tensor(x).float(), torch.tensor(y).long(), parts, test)
    assert data.fingerprint == tensors.fingerprint


@pytest.mark.parametrize(
    ("parts", "message"),
    [([[0.5]], "mine: parts has .0.5.; expected lists of row numbers"), ([["a"]], "expected lists of row numbers"),
     ([[0, 3]], "client 0 has rows outside 0 to 2"), ([0, 1], "or not a flat list of them")],
)  # fmt: skip
def test_parts_that_are_no_rows_are_named(parts: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ArrayData("mine", np.zeros((3, 2)), [0, 1, 2], parts, None)


def test_a_single_row_whose_stride_is_zero_is_taken_like_others() -> None:
    one = torch.from_numpy(np.array([3.0], np.float32)[:, None])  # as y[:, None] makes it
    assert one.stride() == (1, 0)
    data = ArrayData("one", one, torch.tensor([0]), [np.array([0])], (one, torch.tensor([0])))
    assert data.client(0).x.tolist() == [[3.0]]
    same = torch.tensor([[3.0]])
    assert data.fingerprint == ArrayData("one", same, torch.tensor([0]), [[0]], (same, torch.tensor([0]))).fingerprint
