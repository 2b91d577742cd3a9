import pytest

from ray_clusters import ray_cluster


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, of two cores and of one."""
    with ray_cluster(2, 1) as started:
        yield started
