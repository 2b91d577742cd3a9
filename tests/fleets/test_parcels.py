"""What a new process is handed: whole, without copies of arrays, or refused with a remedy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg import Ragged
from fedavg.client_path import ClientPath
from fedavg.data import load
from fedavg.data.posts_store import PostsStore, Writing, prepare
from fedavg.errors import FedAvgError
from fedavg.fleets.parcels import LARGE_BYTES, Unsendable, pack, unpack, why_unsendable
from fedavg.setup import population_of, resolve
from fedavg.states import ClientStates
from fedavg.tasks import TASKS
from toys import TOY, small_net, toy_data, toy_plan

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 40), max_size=3)),
        max_size=4,
    )
)
def test_tensors_arrive_as_they_are(forms):
    tensors = [torch.randint(0, 2, shape).to(dtype) for dtype, shape in forms]
    arrived = unpack(pack({"all": tensors}, "spawn"))["all"]
    assert [(t.dtype, t.shape) for t in arrived] == [(t.dtype, t.shape) for t in tensors]
    assert all(torch.equal(one, other) for one, other in zip(arrived, tensors, strict=True))


def test_large_arrays_are_the_same_memory_for_all_who_open_a_parcel():
    parcel = pack((torch.zeros(LARGE_BYTES), np.zeros(LARGE_BYTES)), "spawn")
    (tensor, array), (other_tensor, other_array) = unpack(parcel), unpack(parcel)
    tensor[5], array[6] = 1.0, 2.0
    assert (float(other_tensor[5]), float(other_array[6])) == (1.0, 2.0)


def test_what_is_one_object_stays_one():
    tensor = torch.arange(2000)
    one, other = unpack(pack((tensor, tensor), "spawn"))
    assert one is other


def test_views_and_rows_of_unlike_lengths_arrive():
    ragged = Ragged.of([torch.arange(3), torch.arange(5)])
    turned, rows = unpack(pack((torch.arange(6).reshape(2, 3).t(), ragged), "spawn"))
    assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [row.tolist() for row in (rows[0:1].values, rows[1:2].values)] == [[0, 1, 2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_the_package_can_be_sent(name):
    assert unpack(pack(TASKS[name], "spawn")).name == TASKS[name].name


@pytest.mark.parametrize("name", ["mnist", "synthetic-posts"])
def test_data_of_the_package_can_be_sent(name):
    data = load(name)
    arrived = unpack(pack(data, "spawn"))
    assert arrived.fingerprint == data.fingerprint
    assert torch.equal(arrived.client(3).y, data.client(3).y)


def test_an_open_file_is_opened_again_by_its_name(tmp_path, capsys):
    prepare(tmp_path / "store", [Writing("a", ["one two three", "two"]), Writing("b", ["three"])])
    store = PostsStore(tmp_path / "store")
    arrived = unpack(pack(store, "spawn"))
    assert arrived._file != store._file
    assert [part.tolist() for part in arrived.read(0, 3)] == [part.tolist() for part in store.read(0, 3)]


def test_what_can_not_be_sent_is_named():
    with pytest.raises(Unsendable, match="lambda"):
        pack([lambda: 1], "spawn")
    assert why_unsendable([("task", TOY), ("data", toy_data()), ("lr", small_net)]) == ""
    assert why_unsendable([("task", TOY), ("codec", lambda: 1)]).startswith("codec: ")
    assert issubclass(Unsendable, FedAvgError)


@pytest.mark.parametrize(
    "changes",
    [
        {"stages": "clip:1.0,weigh:equal,noise:0.5", "dp_epsilon": 100},
        {"secagg": "complete:8:100", "optimizer": "adam:keep=true", "metrics": "f1:3"},
        {"algorithm": "scaffold", "codec": "stc:0.1"},
        {"downlink": "quantise:8", "codec": "lowrank:2"},
        {"secagg": "sparse:8:100", "sampling": "turns", "lr": "cosine:0.1", "algorithm": "fedadam"},
    ],
)
def test_the_setup_of_a_plan_can_be_sent_with_all_that_was_bound(changes, tmp_path):
    """Parts learn numbers of the plan when it is set up: what a client computes with them is what counts."""
    plan = toy_plan(data=toy_data(sizes=(9,) * 12), **changes)
    data = plan.data
    setup = resolve(plan, population_of(data), data.test)
    arrived, arrived_data = unpack(pack((setup, data), "spawn"))
    assert arrived.plan.digest == plan.digest
    assert arrived.test is arrived_data.test
    assert [str(stage) for stage in arrived.stages] == [str(stage) for stage in setup.stages]
    trainers = [each.new_trainer(data.client(0)) for each in (setup, arrived)]
    shared = torch.cat([trainers[0].weights] * setup.algorithm.vectors_down)
    frames = []
    for each, trainer in zip((setup, arrived), trainers, strict=True):
        path = ClientPath(each, trainer, 0, data.client(0), plan.work(1), ClientStates(tmp_path / str(trainer)))
        with path.training() as client:
            update = each.algorithm.client_update(client, shared, plan.work(1))
        frames.append(path.message(update).frame)
    assert frames[0] == frames[1]
