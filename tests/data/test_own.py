from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fedavg.data.own import from_clients, from_dataset, from_folder, from_huggingface, from_table
from fedavg.errors import DataError, PlanError


def test_a_list_of_clients_with_its_test() -> None:
    data = from_clients([([[1, 2]], [0]), ([[3, 4], [5, 6]], [1, 0])], test=([[7, 8]], [1]))
    assert data.sizes.tolist() == [1, 2]
    assert data.client(1).x.tolist() == [[3, 4], [5, 6]]
    assert data.test.y.tolist() == [1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float64, torch.float32), (np.float32, torch.float32), (np.uint8, torch.uint8), (np.int32, torch.int64),
     (np.uint16, torch.int64), (np.bool_, torch.bool)],
)  # fmt: skip
def test_types_of_numbers(given: type, kept: torch.dtype) -> None:
    data = from_clients([(np.ones((3, 2), given), np.zeros(3))])
    assert data.client(0).x.dtype == kept
    assert data.client(0).y.dtype == torch.float32


def test_tensors_are_taken() -> None:
    data = from_clients([(torch.ones(5, 2), torch.arange(5))])
    assert data.client(0).y.tolist() == [0, 1, 2, 3]
    assert data.test.y.tolist() == [4]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0.01, 0.99))
def test_held_out_examples_are_the_last_and_nothing_is_lost(sizes: list[int], held_out: float) -> None:
    starts = np.cumsum([0, *sizes])
    rows = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=False)]
    if max(sizes) == 1:
        return
    data = from_clients([(row[:, None], row) for row in rows], held_out=held_out)
    trained = [data.client(k).y.tolist() for k in range(len(data))]
    assert sorted([*chain(*trained), *data.test.y.tolist()]) == list(range(sum(sizes)))
    for row, ours in zip(rows, trained, strict=True):
        assert row[: len(ours)].tolist() == ours
        assert len(ours) >= (1 if len(row) == 1 else 0)


def test_words_as_labels_are_numbered_by_the_alphabet() -> None:
    data = from_clients([([[0], [1]], ["dog", "cat"])], test=([[2]], ["ant"]))
    assert data.client(0).y.tolist() == [2, 1]
    assert data.test.y.tolist() == [0]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "has no clients"),
        ([([[1]], [1, 2])], r"client 0: x has shape \(1, 1\) and y \(2,\)"),
        ([([[1]], [1]), ([[1, 2]], [1])], r"client 1: an example has shape \(2,\), client 0 has \(1,\)"),
        ([([["a"], ["b"]], [1, 2])], "x has values of type <U1: expected numbers"),
        ([(5, 5)], "expected as many rows in both"),
    ],
)
def test_mistakes_in_lists_are_named(clients: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_clients(clients)


def test_held_out_must_be_a_share() -> None:
    with pytest.raises(DataError, match=r"held_out = 1\.5"):
        from_clients([([[1]], [1])], held_out=1.5)


def test_a_torch_dataset_is_partitioned() -> None:
    labels = torch.arange(40) % 4
    dataset = TensorDataset(torch.arange(40.0).view(40, 1), labels)
    data = from_dataset(dataset, "shards:1", 4, test=dataset)
    assert data.sizes.tolist() == [10] * 4
    assert sorted(set(data.client(k).y.tolist()).pop() for k in range(4)) == [0, 1, 2, 3]
    assert len(data.test) == 40
    again = from_dataset(dataset, "shards:1", 4, test=dataset)
    assert again.fingerprint == data.fingerprint
    with pytest.raises(PlanError, match="partition: got .fair.; expected one of iid"):
        from_dataset(dataset, "fair", 4)


def test_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", x=np.ones((2, 2)), y=np.array([1, 2]))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("p,q,label\n1,2,7\n")
    (tmp_path / "a" / "2.csv").write_text("p,q,label\n3,4,8\n")
    (tmp_path / "test.csv").write_text("p,q,label\n5,6,9\n")
    (tmp_path / "notes.txt").write_text("not a client")
    data = from_folder(tmp_path)
    assert data.client(0).x.tolist() == [[1, 2], [3, 4]]
    assert data.client(0).y.tolist() == [7, 8]
    assert data.sizes.tolist() == [2, 2]
    assert data.test.y.tolist() == [9]
    assert data.name == tmp_path.name


def test_mistakes_in_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no clients"):
        from_folder(tmp_path)
    with pytest.raises(DataError, match=r"can not list .*nowhere"):
        from_folder(tmp_path / "nowhere")
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2)))
    with pytest.raises(DataError, match=r"a.npz: .* Expected an .npz file with arrays of numbers x and y"):
        from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.array([{"a": "pickle"}]), y=np.ones(1))
    with pytest.raises(DataError, match=r"a\.npz"):
        from_folder(tmp_path)


def test_csv_tables(tmp_path: Path) -> None:
    path, test = tmp_path / "table.csv", tmp_path / "test.csv"
    path.write_text("who,a,b,y\nx,1,2.5,0\nw,3,4,1\nx,5,6,1\n")
    test.write_text("a,b,y\n0,0,1\n")
    data = from_table(path, "who", "y", test=test)
    assert data.sizes.tolist() == [1, 2]
    assert data.client(1).x.tolist() == [[1, 2.5], [5, 6]]
    assert data.client(1).y.dtype == torch.int64
    assert data.test.x.tolist() == [[0, 0]]
    only_b = from_table(path, "who", "y", features=["b"], test=test)
    assert only_b.client(0).x.tolist() == [[4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'y'|has no columns"),
        ("who,a\nx,1\n", "has no column 'y': it has 'who', 'a'"),
        ("who,y\nx,1\n", "has no columns for x beside 'who', 'y'"),
        ("a,y\n1,1\n", "has no column 'who'"),
        ("who,a,y\nx,red,1\n", "column 'a' has 'red', expected numbers"),
        ("who,a,y\nx,1\n", "line 2: 2 values, expected 3"),
    ],
)
def test_mistakes_in_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        from_table(path, "who", "y")


def test_parquet_tables(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"who": ["b", "a"], "v": [[1.0, 2.0], [3.0, 4.0]], "w": [5, 6], "y": [0, 1]}), path)
    data = from_table(path, "who", "y", test=path, features=["v", "w"])
    assert data.client(0).x.tolist() == [[3, 4, 6]]
    assert data.client(1).y.tolist() == [0]
    with pytest.raises(DataError, match="no column 'z'"):
        from_table(path, "who", "z")


def test_anything_with_columns_will_do() -> None:
    columns = {"who": ["b", "a", "b"], "v": [[1, 2], [3, 4], [5, 6]], "y": [0, 1, 2]}
    data = from_huggingface(columns, "who", "v", "y", test=columns)
    assert data.sizes.tolist() == [1, 2]
    assert data.client(1).x.tolist() == [[1, 2], [5, 6]]
    unlike = columns | {"v": [[1, 2], [3], [5, 6]]}
    assert from_huggingface(unlike, "who", "v", "y", test=columns).client(0).x.lengths.tolist() == [1]
