"""The memory of whole runs, in processes of their own: what else runs on the machine does not count."""

import sys

import pytest

from memory import grown, of_workload

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/PID/smaps")


def test_the_2nn_on_mnist_fits_into_350_mb_with_two_workers_and_60_for_another():
    two, three = (of_workload("W1", "fork", workers)["peak_mb"] for workers in (2, 3))
    assert two <= 350
    assert three - two <= 60


def test_memory_does_not_grow_with_the_rounds():
    """A vector of the model's size that stayed behind in each round would be 39 MB after 270 of them."""
    found = grown(300, recorded=True, width=3000)
    assert max(found["growth_mb"]) < 10, found


@pytest.mark.slow
def test_memory_does_not_grow_in_thousands_of_rounds():
    found = grown(5000, recorded=False)
    assert max(found["growth_mb"]) < 4, found
