"""Bytes in pieces, and sums that the processes of a node read from each other."""

import os
import signal
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.fleets.ray import pieces
from fedavg.fleets.ray.rings import RingGone, add_rings, new_ring
from programs import Forked


def hold_a_ring(number, pipe):
    ring, place = new_ring(4)
    ring += number
    pipe.send(place)
    signal.pause()


@pytest.fixture
def other_ring():
    """A ring of four numbers, all of them 7, in another process; and that process."""
    here, there = Pipe()
    process = Forked(target=hold_a_ring, args=(7, there))
    process.start()
    yield here.recv(), process
    process.kill()
    process.join()


@given(st.integers(0, 5 * pieces.PIECE_BYTES))
def test_pieces_are_the_bytes(size):
    data = bytes(size)
    cut = pieces.cut(data)
    assert b"".join(cut) == data
    assert len(cut) == pieces.count_of(size)
    assert all(len(piece) <= pieces.PIECE_BYTES for piece in cut)


def test_a_call_carries_less_than_ray_sends_without_its_object_store():
    assert pieces.PIECE_BYTES < 100 * 1024 - 1024
    assert pieces.CALL_BYTES < 10 * 1024**2 - 1024**2
    sent = list(pieces.calls([b"x"] * (2 * pieces.PIECES + 1)))
    assert [len(some) for some in sent] == [pieces.PIECES, pieces.PIECES, 1]


def test_rings_of_several_processes_are_added(other_ring):
    place, _ = other_ring
    ring, ours = new_ring(4)
    ring += torch.tensor([1, 2, 3, 2**40])
    assert add_rings([place, ours], 4).tolist() == [8, 9, 10, 2**40 + 7]
    ring += 1  # what is read is what is there now
    assert add_rings([place, ours], 4).tolist() == [9, 10, 11, 2**40 + 8]


def test_a_ring_is_gone_with_its_process(other_ring):
    place, process = other_ring
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(RingGone, match=f"process {place.pid} has no sum that can be read"):
        add_rings([place], 4)


def test_a_process_that_has_the_number_of_a_dead_one_is_not_taken_for_it(other_ring):
    """Another process may come to have the same number, and open something else under the same descriptor."""
    place, _ = other_ring
    with pytest.raises(RingGone):
        add_rings([replace(place, name="fedavg-of-another")], 4)


def test_a_ring_leaves_no_file():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()  # noqa: PTH112, PTH208
    ring, _ = new_ring(1000)
    ring += 1
    assert {name for name in os.listdir("/dev/shm") if name.startswith("fedavg")} <= before  # noqa: PTH208
    assert np.asarray(ring).sum() == 1000
