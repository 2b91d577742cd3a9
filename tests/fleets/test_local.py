import os
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedavg import LocalFleet, Round, Task, train
from fedavg.codecs.dense import Float32
from fedavg.errors import DataError, Diverged, FleetError, TaskError
from fedavg.fleets.fleet import join
from fedavg.fleets.pool import TOGETHER, _Waiting
from fedavg.fleets.watchdog import Busy
from fedavg.setup import resolve
from fedavg.types import Cohort, Part
from toys import TOY, toy_data, toy_plan


def weights_after(plan, fleet="local"):
    *_, last = train(plan, fleet)
    return last.state.weights


@pytest.mark.parametrize("module", ["plain", "dropout", "batch norm"])
def test_the_same_bits_for_1_2_and_3_workers(module):
    tasks = {
        "plain": TOY,
        "dropout": Task("d", lambda: nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 3))),
        "batch norm": Task("b", lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))),
    }
    data = toy_data(sizes=(7, 12, 0, 8, 20, 9))  # never a batch of one, which batch norm cannot train on
    weights = [weights_after(toy_plan(task=tasks[module], data=data, C=1, B=5, workers=n)) for n in (1, 2, 3)]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_mnist_has_the_same_bits_for_1_2_and_3_workers():
    weights = [
        weights_after(toy_plan(task="mnist-2nn", data="mnist", C=0.05, B=10, E=1, rounds=2, workers=n))
        for n in (1, 2, 3)
    ]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@dataclass(frozen=True)
class Framed(Float32):
    """As it was before: every update is written to a frame and read from it."""

    name = "framed"
    lossless = False


def test_updates_that_are_not_framed_are_the_same_to_a_bit_and_counted_in_full():
    plans = [toy_plan(codec=codec, C=1, workers=2) for codec in (Float32(), Framed())]
    unframed, framed = ([event for event in train(plan) if isinstance(event, Round)] for plan in plans)
    assert torch.equal(unframed[-1].state.weights, framed[-1].state.weights)
    assert [e.bytes_up for e in unframed] == [e.bytes_up for e in framed]
    assert unframed[0].bytes_up == 5 * 4 * len(unframed[0].state.weights)
    assert [e.cohort for e in unframed] == [e.cohort for e in framed]


@pytest.mark.parametrize("codec", [Float32(), Framed()])
def test_a_client_whose_data_are_not_finite_is_named_and_one_that_diverges_too(codec):
    data = toy_data()
    data.client(0).x[0, 0] = float("nan")  # a view of all examples
    with pytest.raises(DataError, match="client 0: x holds NaN or infinity, first in row 0"):
        weights_after(toy_plan(data=data, codec=codec, C=1, workers=1))
    with pytest.raises(Diverged, match=r"client \d: an update holds values that are not finite"):
        weights_after(toy_plan(codec=codec, C=1, lr=1e30, workers=1))


def test_small_jobs_are_handed_out_together_and_a_large_one_alone():
    """Of 320 examples on 2 workers a handful is at most 320 / 16 = 20, and later less."""
    tasks = [Busy(i, "train", size, "") for i, size in enumerate([100.0, *[5.0] * 44])]
    waiting = _Waiting(tasks)
    assert waiting.take(2) == [0]
    assert waiting.take(2) == [1, 2]  # of 220
    waiting.put_back([0, 1])
    assert waiting.take(2) == [0]
    taken = []
    while waiting:
        taken.append(waiting.take(2))
    assert sorted(job for some in taken for job in some) == [1, *range(3, 45)]
    assert len(taken[-1]) == 1
    assert [len(_Waiting([Busy(i, "train", 1.0, "") for i in range(1000)]).take(2))] == [TOGETHER]


class Slow(nn.Module):
    """Takes its time, so that a worker can be killed in the middle of a client."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        time.sleep(0.005)
        return self.out(x)


@pytest.mark.parametrize("options", [{}, {"codec": "topk:0.5", "reducer": "median"}], ids=["sums", "kept and single"])
def test_a_killed_worker_is_replaced_and_the_result_is_unchanged(options):
    """Also when clients keep residuals and send single updates, which are in memory that a dead worker has shared."""

    def plan():
        return toy_plan(task=Task("slow", Slow), C=1, rounds=4, engine="plain", **options)

    expected = weights_after(plan())
    fleet = LocalFleet()
    killed: list[int] = []
    done = threading.Event()

    def assassin():
        while len(killed) < 8 and not done.wait(0.12):  # more in one round would end the run
            for victim in fleet.worker_pids[len(killed) % 2 :][:1]:  # none when the run has just ended
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    events = train(plan(), fleet)
    next(events)
    thread = threading.Thread(target=assassin)
    thread.start()
    try:
        *_, last = events
    finally:
        done.set()
        thread.join()
    assert len(set(killed)) >= 2
    assert torch.equal(last.state.weights, expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_may_have_several_cohorts(workers):
    """Each has a sum of its own; sums are fixed-point numbers, so that what they add up to is exact."""
    plan = toy_plan(workers=workers)
    work = plan.work(1)
    with closing(LocalFleet()) as fleet:
        weights = fleet.start(resolve(plan, fleet.open(plan), fleet.test))
        one, other, whole = (
            fleet.train(Cohort(chosen, len(plan.data)), work, [Part(chosen, weights)])
            for chosen in ([0, 1], [3, 4, 5], [0, 1, 3, 4, 5])
        )
    both = join([one, other], [1.0, 1.0])
    assert torch.equal(both.total.vector, whole.total.vector)
    assert (both.total.weight, both.total.count) == (whole.total.weight, whole.total.count)
    assert both.total.sums["train_loss"].tolist() == pytest.approx(whole.total.sums["train_loss"].tolist())
    assert (both.bytes_up, both.bytes_down, both.largest_up) == (whole.bytes_up, whole.bytes_down, whole.largest_up)
    halved = join([one, other], [1.0, 0.5])
    assert torch.equal(halved.total.vector, one.total.vector + other.total.vector / 2)
    assert halved.total.weight == whole.total.weight


def test_two_clients_run_side_by_side_on_two_workers(tmp_path):
    class Sleeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 3)
            self.home = os.getpid()

        def forward(self, x):
            if self.training and os.getpid() != self.home:
                (tmp_path / str(os.getpid())).touch()
                until = time.monotonic() + 60
                while len(list(tmp_path.iterdir())) < 2:  # until the other is at work too
                    assert time.monotonic() < until, "the other client waits for this one"
                    time.sleep(0.01)
            return self.out(x)

    plan = toy_plan(task=Task("s", Sleeper), data=toy_data(sizes=(6, 6)), C=1, E=1, B="inf", rounds=1, engine="plain")
    *_, last = train(plan)
    assert last.clients == 2


def test_the_user_s_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        weights_after(toy_plan(rounds=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_workers_that_keep_dying_end_the_run():
    class Suicidal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 3)
            self.home = os.getpid()

        def forward(self, x):
            if os.getpid() != self.home:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.out(x)

    with pytest.raises(FleetError, match="workers died in one round, the last with exit code -9"):
        weights_after(toy_plan(task=Task("s", Suicidal), engine="plain"))


def test_an_error_in_a_worker_is_told_with_its_traceback():
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 3)
            self.home = os.getpid()

        def forward(self, x):
            if os.getpid() != self.home:
                raise OSError("not today")
            return self.out(x)

    with pytest.raises(TaskError, match="(?s)'moody' failed in a worker.*not today"):
        weights_after(toy_plan(task=Task("moody", Moody), engine="plain"))


def test_workers_go_away_with_the_fleet():
    plan, fleet = toy_plan(), LocalFleet()
    fleet.start(resolve(plan, fleet.open(plan), fleet.test))
    pids = fleet.worker_pids
    assert len(set(pids)) == 2
    fleet.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_loop_that_is_left_early_leaves_no_workers():
    fleet = LocalFleet()
    events = train(toy_plan(), fleet)
    next(events)
    pids = fleet.worker_pids
    events.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_cohort_of_one_uses_only_one_worker_s_sum():
    """A worker that had nothing to do in a round must not add what it holds from the round before."""
    one, many = toy_plan(C=0, rounds=5, workers=1), toy_plan(C=0, rounds=5, workers=3)
    assert torch.equal(weights_after(one), weights_after(many))


def test_metrics_do_not_depend_on_the_number_of_workers():
    def rows(workers):
        events = train(toy_plan(workers=workers, eval_train=True))
        return [(e.test, e.train, e.train_loss, e.bytes_up) for e in events if isinstance(e, Round)]

    assert rows(1) == rows(3)


def test_clients_that_secure_aggregation_can_not_count_in_full_are_told_of_once(caplog):
    # Of the clients with 7, 12, 5, 20 and 9 examples, those with 12 and 20 count for 10.
    *_, last = train(toy_plan(C=1, secagg="complete:10:10"))
    assert last.examples == 7 + 10 + 5 + 10 + 9
    [told] = [record.message for record in caplog.records if "secure aggregation" in record.message]
    assert told.startswith("2 of 5 clients have more weight than secure aggregation can count, and count for 10;")
    caplog.clear()
    *_, last = train(toy_plan(C=1, secagg="complete:10:20"))
    assert last.examples == 7 + 12 + 5 + 20 + 9
    assert not caplog.records
