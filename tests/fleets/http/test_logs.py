"""What goes wrong for every request while it lasts fills no log."""

import logging

from fedavg.fleets.http.server.logs import Seldom


def test_what_goes_wrong_many_times_is_told_at_once_and_then_now_and_then(caplog, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("fedavg.fleets.http.server.logs.monotonic", lambda: clock[0])
    failures = Seldom(logging.getLogger("fedavg.fleet"), "database", logging.ERROR, pause_s=10)
    for now in (100.0, 100.1, 109.9, 110.0, 110.1):
        clock[0] = now
        failures.tell(f"at {now}")
    told = [(record.levelname, record.message, record.detail, record.times) for record in caplog.records]
    assert told == [("ERROR", "database", "at 100.0", 1), ("ERROR", "database", "at 110.0", 3)]
