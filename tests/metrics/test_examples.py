import doctest

import pytest

from fedavg.metrics import classification, losses, metric, regression


@pytest.mark.parametrize("module", [metric, classification, losses, regression])
def test_the_examples_in_the_docs_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
