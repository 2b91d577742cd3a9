import time

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
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2 * len(cohort)
    assert seconds < 0.02  # for one client: load and save


def test_neighbours_in_a_full_folder_cost_little(tmp_path):
    """All 256 clients of a folder have versions: a client still finds its own at once."""
    states = ClientStates(tmp_path)
    for k in range(256):
        for round in (1, 2):
            states.save(k, round, {"c": torch.tensor([float(k)])})
    began = time.process_time()
    for k in range(256):
        assert kept(states, k, before=3) == {"c": [float(k)]}
    assert (time.process_time() - began) / 256 < 0.01
