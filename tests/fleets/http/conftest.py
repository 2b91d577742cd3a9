import sys
from pathlib import Path

import pytest

# The processes that the tests start import their task and data from here.
sys.path.insert(0, str(Path(__file__).parent))

from postgres import emptied, start_postgres


@pytest.fixture(scope="session")
def postgres():
    """One PostgreSQL for all tests of a worker. Tests stop or crash it, but not the machine, so it does not sync."""
    server = start_postgres("fsync = off")
    yield server
    server.cleanup()


@pytest.fixture
def url(postgres):
    """Its one database, emptied."""
    return emptied(postgres)
