import hashlib

import numpy as np
import pytest
import torch

from fedavg.engine.model import model_sha256
from fedavg.errors import RunDirError
from fedavg.runlog.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedavg.types import State

STATE = State(torch.linspace(-1, 1, 1000), {"momentum": torch.ones(1000)}, {"stage 1": {"clip.norm": torch.ones(1)}})


def test_a_state_comes_back_whole(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, Checkpoint(7, STATE, "digest", {"round": 7}, "link", {"a.states": 5}))
    found = load_checkpoint(path, ["digest"])
    assert (found.round, found.row, found.rows, found.clients) == (7, {"round": 7}, "link", {"a.states": 5})
    assert torch.equal(found.state.weights, STATE.weights)
    assert torch.equal(found.state.slots["momentum"], STATE.slots["momentum"])
    assert found.state.others == STATE.others


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, Checkpoint(7, STATE, "digest"))
    whole = path.read_bytes()
    for length in (0, 1, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RunDirError, match="is not a whole checkpoint"):
            load_checkpoint(path, ["digest"])


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    """Every bit of the header, where the round, the plan, the row and the shapes are, and some of the tensors."""
    path = tmp_path / "c.safetensors"
    small = State(torch.linspace(-1, 1, 10), {"momentum": torch.ones(10)})
    save_checkpoint(path, Checkpoint(7, small, "digest", {"round": 7}, "link", {"a.states": 5}))
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(RunDirError, match="has been altered|is not a whole checkpoint"):
            load_checkpoint(path, ["digest"])


def test_a_checkpoint_of_another_plan_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, Checkpoint(7, STATE, "mine"))
    with pytest.raises(RunDirError, match="belongs to plan mine; expected yours"):
        load_checkpoint(path, ["yours"])


def test_the_model_s_digest_is_of_its_little_endian_floats():
    weights = torch.tensor([1.0, -2.5])
    assert model_sha256(weights) == hashlib.sha256(np.array([1.0, -2.5], "<f4").tobytes()).hexdigest()
