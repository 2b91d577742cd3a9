"""A service in this process for tests, and its operator."""

import threading
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from fedavg.programs.servable import Address, Options
from fedavg.programs.service import serve_runs
from fedavg.programs.service_replica import serve_runs_together
from fedavg.programs.shared_run import Place
from fleet_peers import HOST, NUMBERS, Served, fleet_plan

#: The packages that parts of submitted plans may come from.
ALLOWED = ("toys", "fleet_peers")


class Operated(Served):
    """A service, as its operator knows it."""

    def submit(self, plan, name="", init=None):
        return self.admin("POST", "/admin/runs", {"plan": plan.to_toml(), "name": name, "init": init})

    def runs(self):
        return self.admin("GET", "/admin/runs").json["runs"]

    def state(self, number):
        return self.runs()[number - 1]["state"]

    def change(self, number, verb, message=None):
        return self.admin("POST", f"/admin/runs/{number}/{verb}", message)


@contextmanager
def operating(directory, listen=0, tokens=None, replica=False, **options):
    """`listen` is the port, if a certain one is needed; `tokens` is where the operator's token is, if elsewhere."""
    ready, failed, settled = [], [], threading.Event()

    def serve():
        try:
            options_of = Options(Address(HOST, listen), directory, **{"minimum": 1, **options})
            come = lambda port: (ready.append(port), settled.set())  # noqa: E731
            if replica:
                serve_runs_together(options_of, ALLOWED, Place(), come)
            else:
                serve_runs(options_of, ALLOWED, come)
        except BaseException as error:
            failed.append(error)
        finally:
            settled.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    settled.wait()
    if not ready:
        raise failed[0]
    service = Operated(ready[0], tokens or directory)
    try:
        yield service
    finally:
        with suppress(OSError):
            service.admin("POST", "/admin/stop")
        thread.join(120)
        assert not thread.is_alive()
    assert not failed, failed


@contextmanager
def operating_together(directory, url, count=2, **options):
    """Several replicas of a service in this process, in folders of their own; the first of them makes the tokens."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                operating(directory / str(each), tokens=directory / "0", replica=True, database=url, **options)
            )
            for each in range(count)
        ]


def plan(**changes):
    return fleet_plan(**{"data": "none", "rounds": 1, **changes})


def train(peer, rounds, by=1.0):
    """Take part in `rounds` rounds; each update adds `by` to every weight."""
    for _ in range(rounds):
        offer = peer.offer()
        answer = peer.upload(offer, peer.frame(offer, np.full(NUMBERS, by), 10.0))
        assert answer.json["accepted"]
