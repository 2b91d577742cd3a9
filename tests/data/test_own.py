from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fedavg
from fedavg.data.own import (
    from_arrays,
    from_clients,
    from_dataset,
    from_folder,
    from_huggingface,
    from_table,
    read_examples,
)
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
        ([([[1]], [1]), ([[1, 2]], [1])], r"client 1: x of an example has shape \(2,\), client 0 has \(1,\)"),
        ([([["a"], ["b"]], [1, 2])], "x has values of type <U1: expected numbers"),
        ([(5, 5)], "client 0: x is int 5; expected an array, a tensor or a list"),
        (
            [([[1], [[2, 3]]], [1, 2])],
            r"client 0: x has rows of different forms: row 1 has shape \(1, 2\), row 0 has \(1,\)",
        ),
        ([([[1], [2]], [1, "b"])], "client 0: y has words and numbers: row 1 is 'b'"),
        ([([[1]], [0]), ([[2]], ["b"])], "client 1: y has <U1, client 0 has int64: expected one kind"),
        ([([[1]], [0]), 7], r"client 1 is int; expected a pair \(x, y\), or a dataset"),
        ([([[1], [None]], [0, 1])], "client 0: x, row 1 is .None.; expected a number"),
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


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_a_file_that_is_cut_short_or_another_is_named(tmp_path: Path, ending: str) -> None:
    """Before, a device whose file was being written died of it, or of an EOFError, which looked like Ctrl-C."""
    np.savez(tmp_path / "whole.npz", x=np.ones((9, 2), np.float32), y=np.zeros(9, np.int64))
    whole = (tmp_path / "whole.npz").read_bytes()
    path = tmp_path / f"own.{ending}"
    for content in (b"", whole[: len(whole) // 2], b"\x93NUMPY\x01\x00", bytes(range(256))):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"own\.{ending}"):
            read_examples(path, "label", None)


def test_mistakes_in_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no clients"):
        from_folder(tmp_path)
    with pytest.raises(DataError, match=r"cannot list .*nowhere"):
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
        ("who,a,y\nx,red,1\n", "column 'a', line 2: got red; expected a number"),
        (
            "who,a,y\nx,1,1\nx,l2,1\nx,3,1\n",
            "table.csv, column 'a', line 3: got 'l2'; expected a number as in other rows",
        ),
        ("who,a,y\nx,1,1\nx,,1\n", "column 'a', line 3: got ''; expected a number"),
        ("who,a,y\nx,1,1\nx,2,two\n", "column 'y', line 3: got 'two'; expected a number as in other rows"),
        ("who,a,y\nx,1,cat\nx,2,\n", "column 'y', line 3: got ''; expected a word"),
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
    data = from_huggingface(columns, client="who", x="v", y="y", test=columns)
    assert data.sizes.tolist() == [1, 2]
    assert data.client(1).x.tolist() == [[1, 2], [5, 6]]
    with pytest.raises(DataError, match="column 'v' has rows of different forms: row 1"):
        from_huggingface(columns | {"v": [[1], [[1, 2]], [1]]}, client="who", x="v", y="y")


def test_a_client_without_examples_is_kept() -> None:
    data = from_clients([([], []), ([[1.0], [2.0]], ["b", "a"])], test=([[3.0]], ["a"]))
    assert data.sizes.tolist() == [0, 2]
    assert data.client(1).y.tolist() == [1, 0]


def test_arrays_are_partitioned_and_are_the_same_as_a_dataset_of_them() -> None:
    x, y = np.arange(40.0).reshape(40, 1), np.arange(40) % 4
    data = from_arrays(x, y, "shards:1", 4, test=(x, y))
    assert data.client(0).x.dtype == torch.float32
    dataset = TensorDataset(torch.arange(40.0).view(40, 1), torch.arange(40) % 4)
    assert data.fingerprint == from_dataset(dataset, "shards:1", 4, test=dataset).fingerprint
    with pytest.raises(DataError, match="x has 40 rows and y 39; expected as many rows in both"):
        from_arrays(x, y[1:], "iid", 4)


def test_a_list_of_datasets_is_a_list_of_clients() -> None:
    first = TensorDataset(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    second = [(torch.tensor([3.0]), 1)]
    data = from_clients([first, second], test=first)
    assert data.sizes.tolist() == [2, 1]
    assert data.client(0).x.tolist() == [[1], [2]]
    assert data.client(1).y.tolist() == [1]
    assert data.test.y.tolist() == [0, 1]
    two = from_clients(
        [[(np.zeros(3), 0), (np.ones(3), 1)]], test=first.__class__(torch.zeros(1, 3), torch.tensor([0]))
    )
    assert two.client(0).x.tolist() == [[0, 0, 0], [1, 1, 1]], "a list of two examples is no pair of x and y"


class Dicts(Dataset):
    """As many of Hugging Face's and torchvision's are: an example is a dict."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict:
        return {"image": np.full((2, 2), index), "digit": index % 2, "writer": "w"}


def test_datasets_of_dicts() -> None:
    data = from_dataset(Dicts(6), "iid", 2, test=Dicts(1), x="image", y="digit")
    assert data.sizes.tolist() == [3, 3]
    assert data.client(0).x.shape == (3, 2, 2)
    assert data.test.y.tolist() == [0]
    each = from_clients([Dicts(3), Dicts(2)], test=Dicts(1), x="image", y="digit")
    assert each.sizes.tolist() == [3, 2]
    with pytest.raises(DataError, match="example 0 has 'image', 'digit', 'writer', and no x=... was given"):
        from_dataset(Dicts(6), "iid", 2)
    with pytest.raises(DataError, match="and y='label' was given; name one of them"):
        from_dataset(Dicts(6), "iid", 2, x="image", y="label")
    with pytest.raises(DataError, match="is a pair, which x='image' and y='digit' cannot name"):
        from_dataset(TensorDataset(torch.zeros(2, 1), torch.zeros(2)), "iid", 2, x="image", y="digit")


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1), 0


def test_a_dataset_without_a_length_is_refused() -> None:
    with pytest.raises(DataError, match=r"own is Endless; expected a pair \(x, y\), or a dataset with a length"):
        from_dataset(Endless(), "iid", 2)
    with pytest.raises(DataError, match="example 0 is Tensor tensor"):
        from_dataset(torch.zeros(4, 2), "iid", 2)


def test_paths_may_be_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("p,label\n1,7\n2,8\n")
    assert from_folder(str(tmp_path)).sizes.tolist() == [1]
    assert read_examples(str(tmp_path / "a.csv")).y.tolist() == [7, 8]
    table = tmp_path / "table.csv"
    table.write_text("who,a,y\nx,1,0\nw,3,1\n")
    assert from_table(str(table), "who", "y", test=str(table)).sizes.tolist() == [1, 1]
    with pytest.raises(DataError, match=r"cannot read .*nowhere\.csv: No such file"):
        from_table(str(tmp_path / "nowhere.csv"), "who", "y")


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"who": ["b", "a", "b"], "p": [1, 2, 3], "q": [0.5, 1.5, 2.5], "y": ["no", "yes", "yes"]})
    data = from_table(frame, client="who", label="y", test=frame)
    assert data.sizes.tolist() == [1, 2]
    assert data.client(1).x.tolist() == [[1, 0.5], [3, 2.5]]
    assert data.client(1).y.tolist() == [0, 1]
    dealt = from_table(frame.drop(columns="who"), label="y", partition="iid", clients=3, test=frame)
    assert dealt.sizes.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="column 'q', row 1: the value is missing"):
        from_table(frame.assign(q=[0.5, None, 2.5]), client="who", label="y")
    with pytest.raises(DataError, match="got a table of type dict; expected the path of a file, or a pandas DataFrame"):
        from_table({"a": [1]}, client="who", label="y")


def test_what_says_who_has_which_example_is_asked_for_and_not_twice() -> None:
    columns = {"who": ["b", "a"], "v": [1, 2], "y": [0, 1]}
    with pytest.raises(DataError, match="nothing says which client has which example"):
        from_huggingface(columns, x="v", y="y")
    with pytest.raises(DataError, match="nothing says which client has which example"):
        from_huggingface(columns, x="v", y="y", partition="iid")
    with pytest.raises(DataError, match="a column of clients and a partition"):
        from_huggingface(columns, x="v", y="y", client="who", partition="iid", clients=2)
    with pytest.raises(DataError, match="the dataset has no column 'z': it has 'who', 'v', 'y'"):
        from_huggingface(columns, x="z", y="y", client="who")


def test_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_dict({"v": [[1, 2], [3, 4], [5, 6], [7, 8]], "y": [0, 1, 0, 1]})
    test = datasets.Dataset.from_dict({"v": [[9, 9]], "y": [1]})
    data = from_huggingface(train, x="v", y="y", partition="iid", clients=2, test=test)
    assert data.sizes.tolist() == [2, 2]
    both = from_huggingface(datasets.DatasetDict(train=train, test=test), x="v", y="y", partition="iid", clients=2)
    assert both.fingerprint == data.fingerprint
    held_out = from_huggingface(datasets.DatasetDict(train=train), x="v", y="y", partition="iid", clients=2)
    assert (held_out.sizes.tolist(), len(held_out.test)) == ([1, 1], 2)
    with pytest.raises(DataError, match="the dataset has the splits 'test'; expected 'train'"):
        from_huggingface(datasets.DatasetDict(test=test), x="v", y="y", partition="iid", clients=2)


def test_several_inputs_by_name_and_in_order() -> None:
    named = from_arrays(
        {"a": np.zeros((4, 2)), "b": np.arange(4)}, [0, 1, 0, 1], "iid", 2, test=({"a": [[1, 1]], "b": [9]}, [0])
    )
    assert {name: tuple(leaf.shape) for name, leaf in named.client(0).x.items()} == {"a": (2, 2), "b": (2,)}
    assert named.test.x["b"].tolist() == [9]
    pairs = from_clients(
        [((np.zeros((2, 3)), np.ones((2, 1))), [0, 1])], test=((np.zeros((1, 3)), np.ones((1, 1))), [1])
    )
    assert [tuple(leaf.shape) for leaf in pairs.client(0).x] == [(2, 3), (2, 1)]
    dicts = from_dataset(Dicts(4), "iid", 2, x=["image", "digit"], y="digit")
    assert sorted(dicts.client(0).x) == ["digit", "image"]
    with pytest.raises(DataError, match=r"client 1: x has \['b'\], other clients have \['a'\]"):
        from_clients([({"a": [[1]]}, [0]), ({"b": [[1]]}, [0])])


def test_sequences_of_different_lengths() -> None:
    texts, labels = [[5, 6, 7], [8], [9, 1], [2, 3, 4, 5]], [0, 1, 1, 0]
    data = from_arrays(texts, labels, "shards:1", 2, test=([[1, 2]], [0]))
    assert data.client(0).x.padded(0, multiple=1).tolist() in ([[5, 6, 7, 0], [2, 3, 4, 5]], [[8, 0], [9, 1]])
    assert data.test.x.padded(0, multiple=1).tolist() == [[1, 2]]
    held_out = from_clients([(texts, labels)])
    assert held_out.client(0).x.lengths.tolist() == [3, 1, 2]
    assert held_out.test.x.padded(0, multiple=1).tolist() == [[2, 3, 4, 5]]
    both = from_arrays(texts, texts, "iid", 2, test=(texts, texts))
    assert both.client(0).y.lengths.tolist() == both.client(0).x.lengths.tolist()
    with pytest.raises(DataError, match="partition 'shards:2' deals by labels"):
        from_arrays(texts, texts, "shards:2", 2)


def test_columns_of_sequences_and_several_columns() -> None:
    columns = {"ids": [[1, 2], [3], [4, 5, 6]], "mask": [[1, 1], [1], [1, 1, 1]], "y": [0, 1, 0]}
    data = from_huggingface(columns, x=["ids", "mask"], y="y", partition="iid", clients=3, test=columns)
    assert data.test.x["ids"].padded(0, multiple=1).tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]


def test_own_sequences_are_trained_on() -> None:
    task = fedavg.Task("bag", lambda: nn.EmbeddingBag(10, 2, mode="sum"), collate=fedavg.padded(0))
    texts = [[1, 2, 3], [4], [1, 2], [5, 6, 4, 4], [1], [4, 5]]
    data = from_arrays(texts, [0, 1, 0, 1, 0, 1], "iid", 2, test=(texts, [0, 1, 0, 1, 0, 1]))
    result = fedavg.run(fedavg.Plan(task=task, data=data, C=1, B=2, lr=0.5, rounds=20, workers=1))
    assert result.accuracy[-1] == 1
