"""Own data whose examples are tuples, dicts, or rows of unlike lengths."""

import numpy as np
import pytest
import torch

from fedavg import Ragged
from fedavg.data.own import from_clients, from_dataset, from_huggingface
from fedavg.errors import DataError


def test_tuples_and_dicts_of_arrays_by_client():
    def client(n, start):
        x = {"a": np.arange(start, start + n, dtype=np.float64), "b": [[i, i] for i in range(n)]}
        return x, (np.zeros(n, np.int32), torch.arange(n))

    data = from_clients([client(3, 0), client(2, 10)], test=client(1, 20))
    assert data.sizes.tolist() == [3, 2]
    second = data.client(1)
    assert second.x["a"].tolist() == [10, 11]
    assert (second.x["a"].dtype, second.x["b"].shape, second.y[0].dtype) == (torch.float32, (2, 2), torch.int64)
    assert data.test.x["a"].tolist() == [20]


def test_rows_of_unlike_lengths_become_ragged_and_the_last_are_held_out():
    data = from_clients([([[1, 2, 3], [4], [5, 6]], [0, 1, 1]), ([[7, 8]], [0])], held_out=0.4)
    assert isinstance(data.client(0).x, Ragged)
    assert data.client(0).x.padded(0, 1).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert data.client(1).x.lengths.tolist() == [2]
    assert data.test.x.values.tolist() == [5, 6]
    assert data.test.y.tolist() == [1]


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return {"image": torch.full((2, 2), float(i)), "words": np.arange(i + 1)}, i % 2


def test_a_dataset_of_dicts_is_dealt_out():
    data = from_dataset(Pairs(), "iid", 3, held_out=0.4)
    whole = torch.cat([data.client(k).x["image"][:, 0, 0] for k in range(3)] + [data.test.x["image"][:, 0, 0]])
    assert sorted(whole.tolist()) == [0, 1, 2, 3, 4, 5]
    k = data.client(0)
    assert k.x["words"].lengths.tolist() == [int(i) + 1 for i in k.x["image"][:, 0, 0]]


def test_columns_of_a_hugging_face_dataset_by_name():
    columns = {
        "who": ["a", "b", "a"],
        "input_ids": [[1, 2], [3], [4, 5, 6]],
        "attention_mask": [[1, 1], [1], [1, 1, 1]],
        "label": [0, 1, 2],
    }
    data = from_huggingface(columns, "who", ["input_ids", "attention_mask"], "label", test=columns)
    assert data.sizes.tolist() == [2, 1]
    assert data.client(0).x["input_ids"].values.tolist() == [1, 2, 4, 5, 6]
    assert data.client(0).y.tolist() == [0, 2]
    alone = from_huggingface(columns, "who", "input_ids", "label", test=columns)
    assert alone.client(1).x.values.tolist() == [3]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([(([1.0], [2.0, 3.0]), [0])], "own, client 0: x has shape .* expected as many rows in all"),
        ([(([1.0], [2.0]), [0]), (([[1.0]], [2.0]), [0])], "own, client 1: an example has x .*client 0 has"),
        ([({"a": [1.0]}, [0]), ({"b": [1.0]}, [0])], "own, client 1: an example has"),
        ([({"a": ["word"]}, [0])], r"own, client 0: x\['a'\] has values of type"),
    ],
)
def test_what_does_not_fit_together_is_named(clients, message):
    with pytest.raises(DataError, match=message):
        from_clients(clients, test=clients[0])
