"""How a request is refused when the database fails."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedavg.fleets.http.server.refusals import Refusal, later
from fedavg.fleets.http.server.store import StoreError

log = logging.getLogger("fedavg.fleet")


@contextmanager
def storage_failures() -> Iterator[None]:
    """What the database did not do becomes an answer: to come back where that may help."""
    try:
        yield
    except StoreError as error:
        log.error("database", extra={"detail": str(error)})
        if not error.retryable:
            raise Refusal("storage-refused", str(error)) from None
        raise Refusal("storage", "the server can not write at the moment; come back", later(5)) from None
