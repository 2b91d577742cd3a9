import hashlib

import numpy as np
import pytest
import torch

from fedavg.errors import RunDirError
from fedavg.runlog.checkpoint import load_state, model_sha256, save_state
from fedavg.types import State

STATE = State(torch.linspace(-1, 1, 1000), {"momentum": torch.ones(1000)}, {"stage 1": {"clip.norm": torch.ones(1)}})


def test_a_state_comes_back_whole(tmp_path):
    path = tmp_path / "c.safetensors"
    save_state(path, 7, STATE, "digest", {"round": 7})
    round, state, row = load_state(path, "digest")
    assert row == {"round": 7}
    assert round == 7
    assert torch.equal(state.weights, STATE.weights)
    assert torch.equal(state.slots["momentum"], STATE.slots["momentum"])
    assert state.others == STATE.others


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_state(path, 7, STATE, "digest")
    whole = path.read_bytes()
    for length in (0, 1, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RunDirError, match="is not a whole checkpoint"):
            load_state(path, "digest")


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "c.safetensors"
    save_state(path, 7, STATE, "digest")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunDirError, match="altered"):
        load_state(path, "digest")


def test_a_checkpoint_of_another_plan_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_state(path, 7, STATE, "mine")
    with pytest.raises(RunDirError, match="belongs to plan mine; expected yours"):
        load_state(path, "yours")


def test_the_model_s_digest_is_of_its_little_endian_floats():
    weights = torch.tensor([1.0, -2.5])
    assert model_sha256(weights) == hashlib.sha256(np.array([1.0, -2.5], "<f4").tobytes()).hexdigest()
