"""What a run directory says of the run that was started in it."""

import pytest

from fedavg import Plan
from fedavg.errors import RunDirError
from fedavg.runlog.rundir import RunDir


@pytest.fixture
def started(tmp_path):
    """Starts a run on an engine, in a directory of its own."""

    def start(engine):
        directory = RunDir(tmp_path / "run")
        directory.create(Plan())
        directory.write_identity(Plan(), engine, "data", {"computed": {}})
        return directory

    return start


def test_a_run_goes_on_only_with_kernels_for_the_same_instructions(started):
    directory = started("graph with native convolution (avx512)")
    directory.check_engine("graph with native convolution (avx512)")
    for other in ("graph with native convolution (avx2)", "graph", "plain"):
        with pytest.raises(RunDirError, match=r"was started with engine 'graph with native convolution \(avx512\)'"):
            directory.check_engine(other)


def test_a_run_of_a_version_that_did_not_record_instructions_goes_on(started):
    directory = started("graph with native convolution")
    directory.check_engine("graph with native convolution (avx512)")
    with pytest.raises(RunDirError, match="was started with engine"):
        directory.check_engine("graph with native dense layers (avx512)")
