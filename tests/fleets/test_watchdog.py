"""Workers that hang: when they count as hung, and that real ones are replaced without a bit of difference."""

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from fedavg import LocalFleet, Plan, Task, train
from fedavg.errors import FleetError, PlanError
from fedavg.fleets.watchdog import Busy, Watchdog
from toys import toy_plan


def client(job, size=10.0):
    return Busy(job, "train", size, f"client {job}")


def test_the_limit_follows_from_the_slowest_job_so_far():
    dog = Watchdog(None)
    assert dog.limit_s(client(0)) == 900
    dog.begins(0, client(0, size=10))
    for _ in range(40):
        dog.waited(1.0)
    dog.done(0)  # 4 s an example
    assert dog.limit_s(client(1, size=10)) == 20 * 40
    assert dog.limit_s(client(1, size=100)) == 20 * 400
    assert dog.limit_s(client(1, size=0.1)) == 60
    assert dog.limit_s(Busy(1, "evaluate test", 10, "piece 1")) == 900


def test_silence_is_told_at_half_of_the_limit_and_ends_at_it():
    dog = Watchdog(10.0)
    dog.begins(3, client(0))
    said = [dog.waited(1.0) for _ in range(10)]
    assert [len(suspicious) for suspicious, _ in said] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert [silence.slot for _, hung in said for silence in hung] == [3]
    assert said[-1][1][0].seconds == 10


def test_a_machine_that_slept_makes_nobody_look_hung():
    dog = Watchdog(10.0)
    dog.begins(0, client(0))
    assert dog.waited(8 * 3600.0) == ([], [])


def test_a_job_that_hung_is_given_twice_the_time_and_a_third_hang_is_its_own_fault():
    dog = Watchdog(None)
    limits = []
    for _ in range(3):
        dog.begins(0, client(7))
        limits.append(dog.limit_s(client(7)))
        while not dog.waited(2.0)[1]:
            pass
        dog.gone(0)
    assert limits == [900, 1800, 3600]
    assert dog.hopeless(client(7))
    assert not dog.hopeless(client(8))


class Slow(nn.Module):
    """Takes its time, so that a worker can be stopped in the middle of a client."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        time.sleep(0.003)
        return self.out(x)


@pytest.mark.parametrize("secagg", ["none", "complete:4:100"])
def test_a_stopped_worker_is_replaced_and_the_result_is_unchanged(caplog, secagg):
    def plan():
        return toy_plan(
            task=Task("slow", Slow), C=1, rounds=3, engine="plain", secagg=secagg, worker_timeout=4.0
        )  # fmt: skip

    *_, expected = train(plan())
    fleet = LocalFleet()
    events = train(plan(), fleet)
    next(events)
    next(events)
    victim = fleet.worker_pids[0]
    stopper = threading.Timer(0.05, os.kill, (victim, signal.SIGSTOP))
    stopper.start()
    *_, last = events
    stopper.join()
    assert torch.equal(last.state.weights, expected.state.weights)
    assert f"worker {victim} has not answered for 4 s (" in caplog.text
    assert "another takes its place" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)


class Stuck(nn.Module):
    """Never comes back, but only in a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.home = os.getpid()

    def forward(self, x):
        while os.getpid() != self.home:
            time.sleep(0.1)
        return self.out(x)


def test_a_module_that_is_always_stuck_ends_the_run_with_a_remedy():
    plan = toy_plan(task=Task("stuck", Stuck), engine="plain", worker_timeout=1.0, workers=1)
    with pytest.raises(FleetError, match=r"client \d in round 1\), the same as .* --worker-timeout SECONDS"):
        list(train(plan))


def test_the_timeout_does_not_change_the_identity_of_a_plan():
    assert Plan(worker_timeout=5).digest == Plan().digest
    with pytest.raises(PlanError, match="worker_timeout: got 0; expected a number above 0"):
        Plan(worker_timeout=0)
