import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """As in a worker: on a busy machine, threads of small products only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
