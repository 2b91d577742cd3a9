"""How a request is refused when the database fails."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedavg.fleets.http.server.logs import Seldom
from fedavg.fleets.http.server.refusals import Refusal, later
from fedavg.fleets.http.server.store import StoreError

_failures = Seldom(logging.getLogger("fedavg.fleet"), "database", logging.ERROR)


@contextmanager
def storage_failures() -> Iterator[None]:
    """Turns a database failure into an answer, which says to come back later where that may help."""
    try:
        yield
    except StoreError as error:
        _failures.tell(error)
        if not error.retryable:
            raise Refusal("storage-refused", str(error)) from None
        raise Refusal("storage", "the server cannot write at the moment; come back", later(5)) from None
