import pytest

from ray_clusters import ray_cluster


@pytest.fixture(scope="session")
def cluster():
    """Two nodes, of two cores and of one, for all tests that leave them as they are: to start Ray takes long."""
    with ray_cluster(2, 1) as started:
        yield started
