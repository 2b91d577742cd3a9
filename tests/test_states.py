import shutil
import subprocess
import sys
import time
from multiprocessing import get_context

import pytest
import torch

from fedavg.errors import RunDirError
from fedavg.recent import RecentStates
from fedavg.states import ClientStates, packed, unpacked


def kept(states, k, before):
    return {name: tensor.tolist() for name, tensor in states.load(k, before).items()}


def test_a_client_finds_what_it_kept_in_its_last_round(tmp_path):
    states = ClientStates(tmp_path)
    assert states.load(7, before=1) == {}
    states.save(7, 3, {"c": torch.tensor([3.0])})
    states.save(7, 9, {"c": torch.tensor([9.0])})
    states.save(70, 4, {"c": torch.tensor([4.0])})
    assert kept(states, 7, before=3) == {}
    assert kept(states, 7, before=9) == {"c": [3.0]}
    assert kept(states, 7, before=10) == {"c": [9.0]}
    assert kept(states, 70, before=10) == {"c": [4.0]}


def test_a_state_has_these_bytes():
    """So that files of before stay readable: a length of 8 bytes, JSON, numbers, each part filled up to 16 bytes."""
    head = b'[["c", "float32", [2]], ["n", "int64", []]]'
    assert len(head) == 43  # 8 + 43 + 13 = 64
    numbers = b"\0\0\x80\x3f\0\0\0\xc0" + bytes(8) + b"\x05" + bytes(15)  # 1.0, -2.0; 5
    expected = (43).to_bytes(8, "little") + head + bytes(13) + numbers
    for _ in range(2):  # the second time the head is known
        assert packed({"c": torch.tensor([1.0, -2.0]), "n": torch.tensor(5)}) == expected
    assert {name: tensor.tolist() for name, tensor in unpacked(bytearray(expected)).items()} == {"c": [1, -2], "n": 5}


def test_states_of_one_shape_do_not_share_their_numbers():
    first, second = (bytearray(packed({"c": torch.full((3,), value)})) for value in (1.0, 2.0))
    one, two = unpacked(first), unpacked(second)
    one["c"] += 10
    assert one["c"].tolist() == [11.0] * 3
    assert two["c"].tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(4, 6).t(),
        torch.arange(9.0)[::2],
        torch.arange(5.0, requires_grad=True),
        torch.arange(5.0).bfloat16(),
        torch.tensor(True),
        torch.empty(0, 4),
        torch.tensor(2.5, dtype=torch.float64),
    ],
    ids=["transposed", "every second", "with a gradient", "bfloat16", "bool", "empty", "a single number"],
)
def test_any_tensor_is_kept_as_it_is(tensor):
    again = unpacked(bytearray(packed({"before": torch.tensor([1, 2, 3], dtype=torch.uint8), "it": tensor})))["it"]
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert again.tolist() == tensor.tolist()


def test_versions_that_nobody_needs_are_dropped(tmp_path):
    states = ClientStates(tmp_path, segment_bytes=4000)
    for round in range(1, 41):
        states.save(5, round, {"c": torch.full((200,), float(round))})
        states.save(6, round, {"c": torch.full((200,), -float(round))}) if round == 1 else None
        states.settle(round)
    assert kept(states, 5, before=41) == {"c": [40.0] * 200}
    assert kept(states, 6, before=41) == {"c": [-1.0] * 200}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * 4000
    again = ClientStates(tmp_path, segment_bytes=4000)
    assert kept(again, 5, before=41) == {"c": [40.0] * 200}
    assert kept(again, 6, before=41) == {"c": [-1.0] * 200}


def test_a_rewind_brings_back_what_a_mark_saw(tmp_path):
    """Also when outdated files were dropped in between, and when the round after the mark was under way."""
    states = ClientStates(tmp_path, segment_bytes=4000)
    marks = {}
    for round in range(1, 31):
        for k in {round % 3, round % 7}:
            states.save(k, round, {"c": torch.full((100,), float(round))})
        states.tidy(round - 1)
        marks[round - 1] = states.mark(round - 1)
        states.drop_outdated([marks[number] for number in (round - 2, round - 1) if number in marks])
    for mark in (28, 29):
        there = tmp_path.parent / f"copy of {mark}"
        shutil.copytree(tmp_path, there)
        ClientStates.verify(there, marks[mark])
        ClientStates.rewind(there, marks[mark])
        rewound = ClientStates(there)
        for k in range(7):
            last = max(round for round in range(1, mark + 1) if k in (round % 3, round % 7))
            assert kept(rewound, k, before=99) == {"c": [float(last)] * 100}


def test_what_forked_processes_keep_is_found_by_all(tmp_path):
    states = ClientStates(tmp_path)
    states.save(0, 1, {"c": torch.tensor([0.0])})
    context = get_context("fork")
    for number in range(3):
        child = context.Process(target=states.save, args=(number, 2, {"c": torch.tensor([float(number)])}))
        child.start()
        child.join()
    assert [kept(states, k, before=3) for k in range(3)] == [{"c": [0.0]}, {"c": [1.0]}, {"c": [2.0]}]
    assert len(list(tmp_path.iterdir())) == 4  # one file for each process that wrote


def test_a_version_whose_round_did_not_count_is_forgotten(tmp_path):
    states = ClientStates(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(5, 2, {"c": torch.tensor([2.0])})
    states.discard(5, 2)
    assert kept(states, 5, before=3) == {"c": [1.0]}


def test_what_was_taken_back_stays_so(tmp_path):
    """Though the files are tidied, and the process begins anew."""
    states = ClientStates(tmp_path, segment_bytes=1000)
    states.save(5, 1, {"c": torch.ones(60)})
    states.save(5, 2, {"c": torch.full((60,), 2.0)})
    for k in range(6, 12):
        states.save(k, 2, {"c": torch.ones(100)})
    states.discard(5, 2)
    for _ in range(9):
        states.save(7, 3, {"c": torch.ones(100)})
        states.settle(3)
    assert kept(ClientStates(tmp_path), 5, before=9) == {"c": [1.0] * 60}
    states.save(5, 2, {"c": torch.tensor([2.5])})  # another attempt at the round
    for _ in range(9):
        states.save(7, 4, {"c": torch.ones(100)})
        states.settle(4)
    assert kept(ClientStates(tmp_path), 5, before=9) == {"c": [2.5]}


def test_a_record_that_was_cut_off_is_not_there(tmp_path):
    states = ClientStates(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(5, 2, {"c": torch.tensor([2.0])})
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-2])
    assert kept(ClientStates(tmp_path), 5, before=3) == {"c": [1.0]}


def test_no_flipped_bit_is_taken_for_what_a_client_kept(tmp_path):
    states = ClientStates(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(5, 2, {"c": torch.tensor([2.0])})
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    mark = {path.name: len(whole)}
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(RunDirError, match="damaged at byte|of another kind"):
            ClientStates.verify(tmp_path, mark)
    path.write_bytes(whole[:-2] + b"??")
    with pytest.raises(RunDirError, match="what client 5 kept in round 2 does not match its digest.*starts over"):
        ClientStates(tmp_path).load(5, before=3)


def test_half_a_million_clients_cost_nothing_until_they_are_picked(tmp_path):
    """A cohort of 50 among 500,000, each with the residual of a 2NN (0.8 MB): only its files are there."""
    states = ClientStates(tmp_path)
    cohort = range(0, 500_000, 10_000)
    residual = torch.linspace(-1, 1, 199_210)
    assert not any(tmp_path.iterdir())
    began = time.process_time()
    for round in (1, 2):
        for k in cohort:
            assert len(states.load(k, round)) == round - 1
            states.save(k, round, {"residual": residual})
    seconds = (time.process_time() - began) / (2 * len(cohort))
    assert torch.equal(states.load(490_000, 3)["residual"], residual)
    assert len(list(tmp_path.iterdir())) == 2  # of 64 MB each
    assert seconds < 0.02  # for one client: load and save


def in_memory(root, clients=10, place_bytes=256):
    states = ClientStates(root, recent=RecentStates(clients, place_bytes))
    states.flush()
    return states


def test_without_anybody_who_flushes_all_is_written_at_once(tmp_path):
    """A fleet around another may not pass `flush_states` on: what clients keep must not be lost by that."""
    states = ClientStates(tmp_path, recent=RecentStates(10, 256))
    states.save(5, 1, {"c": torch.tensor([1.0])})
    assert kept(states, 5, before=2) == kept(ClientStates(tmp_path), 5, before=2) == {"c": [1.0]}


def test_what_is_in_memory_is_written_before_a_mark_and_not_sooner(tmp_path):
    states = in_memory(tmp_path / "states")
    for round in (1, 2, 3):
        states.save(5, round, {"c": torch.tensor([float(round)])})
    assert kept(states, 5, before=9) == {"c": [3.0]}
    assert not (tmp_path / "states").exists()
    mark = states.mark(3)
    ClientStates.verify(tmp_path / "states", mark)
    assert [kept(ClientStates(tmp_path / "states"), 5, before) for before in (3, 4)] == [{"c": [2.0]}, {"c": [3.0]}]
    assert states.mark(3) == mark


def test_a_mark_leaves_out_a_round_that_was_under_way_in_memory(tmp_path):
    states = in_memory(tmp_path)
    for k, round in ((1, 1), (2, 2), (1, 3), (2, 3), (1, 4)):
        states.save(k, round, {"c": torch.tensor([float(round)])})
    mark = states.mark(3)
    ClientStates.rewind(tmp_path, mark)
    assert [kept(ClientStates(tmp_path), k, before=9) for k in (1, 2)] == [{"c": [3.0]}] * 2


def test_what_does_not_fit_into_memory_goes_to_the_files_and_the_later_version_counts(tmp_path):
    states = in_memory(tmp_path, place_bytes=128)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(5, 2, {"c": torch.full((100,), 2.0)})
    assert kept(states, 5, before=2) == {"c": [1.0]}
    assert kept(states, 5, before=3) == {"c": [2.0] * 100}
    states.save(5, 3, {"c": torch.tensor([3.0])})
    assert kept(states, 5, before=4) == {"c": [3.0]}
    states.flush()
    again = ClientStates(tmp_path)
    assert [kept(again, 5, before)["c"][0] for before in (2, 3, 4)] == [1.0, 2.0, 3.0]


def test_a_resumed_run_finds_in_files_what_is_not_in_memory_yet(tmp_path):
    states = in_memory(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(6, 1, {"c": torch.tensor([6.0])})
    states.mark(1)
    again = in_memory(tmp_path)
    again.save(5, 2, {"c": torch.tensor([2.0])})
    assert (kept(again, 5, before=3), kept(again, 6, before=3)) == ({"c": [2.0]}, {"c": [6.0]})


def test_a_version_in_memory_whose_round_did_not_count_is_forgotten(tmp_path):
    states = in_memory(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(5, 2, {"c": torch.tensor([2.0])})
    states.discard(5, 2)
    assert kept(states, 5, before=3) == {"c": [1.0]}


ORPHAN = """
import os, sys, time
from pathlib import Path
import torch
from fedavg.errors import FleetError
from fedavg.states import ClientStates, packed, unpacked

states = ClientStates(Path(sys.argv[1]) / "states")
server = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == server:
    time.sleep(0.01)
try:
    states.save(5, 2, {"c": torch.tensor([2.0])})
except FleetError as error:
    Path(sys.argv[1], "saying").write_text(str(error))
    Path(sys.argv[1], "saying").rename(Path(sys.argv[1], "said"))
"""


def test_a_worker_without_its_server_keeps_nothing_more(tmp_path):
    """Another server may have gone on with the run from an earlier round."""
    subprocess.run([sys.executable, "-c", ORPHAN, str(tmp_path)], check=True, timeout=60)
    until = time.monotonic() + 60
    while not (tmp_path / "said").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert "is gone; nothing more is kept there" in (tmp_path / "said").read_text()
    assert not (tmp_path / "states").exists()
