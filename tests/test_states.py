import pytest
import torch

from fedavg.errors import RunDirError
from fedavg.states import ClientStates


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


def test_versions_that_no_checkpoint_needs_are_dropped(tmp_path):
    states = ClientStates(tmp_path)
    for round in (1, 2, 3):
        states.save(5, round, {"c": torch.tensor([float(round)])})
    states.settle(3)
    states.save(5, 4, {"c": torch.tensor([4.0])})
    assert kept(states, 5, before=3) == {}  # gone
    assert kept(states, 5, before=4) == {"c": [3.0]}  # the run may still go back to round 3
    assert kept(states, 5, before=5) == {"c": [4.0]}


def test_a_version_whose_round_did_not_count_is_forgotten(tmp_path):
    states = ClientStates(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    states.save(5, 2, {"c": torch.tensor([2.0])})
    states.discard(5, 2)
    assert kept(states, 5, before=3) == {"c": [1.0]}


def test_a_torn_file_is_an_error(tmp_path):
    states = ClientStates(tmp_path)
    states.save(5, 1, {"c": torch.tensor([1.0])})
    path = next(tmp_path.rglob("5.1.safetensors"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(RunDirError, match="can not be read"):
        states.load(5, before=2)
