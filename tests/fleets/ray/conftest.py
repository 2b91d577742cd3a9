import pytest

from ray_clusters import ray_cluster


@pytest.fixture(scope="package")
def cluster():
    """Two nodes, of two cores and of one, for all tests that leave them as they are: to start Ray takes long. It ends
    with the last of them, since an idle Ray is never quite idle."""
    with ray_cluster(2, 1) as started:
        yield started
