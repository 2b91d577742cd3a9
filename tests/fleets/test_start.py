"""Workers that are spawned, or forked by a server of their own: the same bits as forked ones, whatever happens."""

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from tempfile import gettempdir

import pytest
import torch
from torch import nn

import fedavg
from fedavg import LocalFleet, Plan, Task, train
from fedavg.errors import FleetError, PlanError, TaskError
from fedavg.fleets.start import method_of
from toys import heed_ctrl_c, toy_data, toy_plan

OTHERS = ["spawn", "forkserver"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="compares with fork, and kills by signals")


def drawing_net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))


DRAWING = Task("drawing", drawing_net)


def plan_with_all(**changes):
    """Draws of a module, buffers, what an algorithm and a codec keep, examples held out, metrics of clients."""
    values = {
        "task": DRAWING, "data": toy_data(sizes=(7, 12, 0, 8, 20, 9)), "C": 1, "B": 4, "rounds": 3,
        "algorithm": "scaffold", "codec": "topk:0.5", "holdout": 0.2, "evaluate": "server,clients",
    }  # fmt: skip
    return toy_plan(**{**values, **changes})


def last_of(plan, fleet="local"):
    *_, last = train(plan, fleet)
    return last


@pytest.mark.parametrize(("method", "workers"), [("spawn", 2), ("forkserver", 3)])
def test_the_same_bits_as_forked_workers(method, workers):
    expected = last_of(plan_with_all(workers=1, start_method="fork"))
    found = last_of(plan_with_all(workers=workers, start_method=method))
    assert torch.equal(found.state.weights, expected.state.weights)
    assert (found.test, found.on_clients, found.train_loss) == (expected.test, expected.on_clients, expected.train_loss)


class Slow(nn.Module):
    """Takes its time, so that a worker can be killed in the middle of a client."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        time.sleep(0.004)
        return self.out(x)


SLOW = Task("slow", Slow)


@pytest.mark.parametrize(("method", "end"), [("spawn", signal.SIGKILL), ("forkserver", signal.SIGSTOP)])
def test_a_worker_that_dies_or_hangs_is_replaced_and_the_result_is_unchanged(method, end, caplog):
    plan = toy_plan(task=SLOW, C=1, rounds=3, engine="plain", worker_timeout=4.0)
    expected = last_of(plan)
    fleet = LocalFleet()
    events = train(toy_plan(task=SLOW, C=1, rounds=3, engine="plain", worker_timeout=4.0, start_method=method), fleet)
    next(events)
    next(events)
    victim = fleet.worker_pids[0]
    os.kill(victim, end)
    *_, last = events
    assert torch.equal(last.state.weights, expected.state.weights)
    assert ("it hangs: another takes its place" in caplog.text) == (end == signal.SIGSTOP)
    wait_until_gone(victim)


def wait_until_gone(pid):
    until = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_run_goes_on_with_workers_that_start_in_another_way(tmp_path):
    whole = fedavg.run(plan_with_all(rounds=4), tmp_path / "whole")
    fedavg.run(plan_with_all(rounds=2), tmp_path / "parts")
    parts = {"task": DRAWING, "data": plan_with_all().data}
    resumed = fedavg.resume(tmp_path / "parts", rounds=4, start_method="forkserver", **parts)
    assert resumed.summary.model_sha256 == whole.summary.model_sha256


class Moody(nn.Module):
    """Fails on two examples; what a task is proved on has four, or one."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        if self.training and len(x) == 2:
            raise OSError("not today")
        return self.out(x)


def test_an_error_in_a_worker_is_told_with_its_traceback():
    data = toy_data(sizes=(7, 6))
    plan = toy_plan(task=Task("moody", Moody), data=data, C=1, engine="plain", start_method="forkserver")
    with pytest.raises(TaskError, match="(?s)'moody' failed in a worker.*not today"):
        last_of(plan)


class Homesick(nn.Module):
    """Works only in the process of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        if parent_process():
            raise OSError("not here")
        return self.out(x)


def test_a_worker_that_can_not_start_says_why():
    plan = toy_plan(task=Task("homesick", Homesick), engine="plain", start_method="forkserver")
    with pytest.raises(FleetError, match="(?s)a worker cannot start:.*OSError: not here"):
        last_of(plan)


def test_how_workers_start_does_not_count_in_the_digest():
    assert Plan(start_method="spawn").digest == Plan().digest
    with pytest.raises(PlanError, match="start_method: got 'threads'; expected one of auto, fork, spawn, forkserver"):
        Plan(start_method="threads")


def test_each_system_has_its_own_way(monkeypatch):
    for system, method in (("linux", "fork"), ("darwin", "spawn"), ("win32", "spawn")):
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(
            "fedavg.fleets.start.get_all_start_methods",
            lambda system=system: ["spawn"] if system == "win32" else ["fork", "spawn", "forkserver"],
        )
        assert method_of(Plan()) == method
    with pytest.raises(PlanError, match="start_method: got 'fork', which this system lacks; expected one of auto, sp"):
        method_of(Plan(start_method="fork"))


# ---- objects that a new process cannot have ----


def test_a_lambda_is_refused_with_a_remedy():
    plan = toy_plan(task=Task("mine", lambda: nn.Linear(8, 3)), start_method="spawn")
    with pytest.raises(
        FleetError, match="started by 'spawn' must be sent what they train, and task: .*lambda.*mine.py"
    ):
        last_of(plan)


def test_where_spawn_is_the_system_s_own_way_such_objects_run_in_the_server_s_process(monkeypatch, caplog):
    task = Task("mine", lambda: nn.Linear(8, 3))
    expected = last_of(toy_plan(task=task))
    monkeypatch.setattr("fedavg.fleets.local.method_of", lambda plan: "spawn")
    found = last_of(toy_plan(task=task))
    assert torch.equal(found.state.weights, expected.state.weights)
    assert "clients run one after another in this process: workers that are started by 'spawn' must" in caplog.text
    with pytest.raises(FleetError, match="must be sent what they train"):  # the watchdog would have nobody to watch
        last_of(toy_plan(task=task, worker_timeout=60))


SCRIPT = """
import sys
from torch import nn
from fedavg import Plan, Task, run

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x):
        return self.out(x.flatten(1))

{guard}
    plan = Plan(task=Task("net", Net), data="mnist", C=0.02, rounds=1, workers=1, start_method=sys.argv[1])
    print(run(plan).summary.model_sha256)
"""
GUARDED, UNGUARDED = (SCRIPT.format(guard=guard) for guard in ("if __name__ == '__main__':", "if True:"))


def run_script(text, method, folder):
    (folder / "script.py").write_text(text)
    return subprocess.run([sys.executable, "script.py", method], cwd=folder, capture_output=True, text=True)


def test_classes_of_a_script_work_if_what_runs_is_guarded(tmp_path):
    forked, spawned = (run_script(GUARDED, method, tmp_path) for method in ("fork", "spawn"))
    assert spawned.returncode == 0, spawned.stderr
    assert spawned.stdout == forked.stdout != ""


def test_a_script_without_the_guard_is_told_so(tmp_path):
    done = run_script(UNGUARDED, "spawn", tmp_path)
    assert done.returncode == 1
    assert "put the code that runs below: if __name__ == '__main__':" in done.stderr
    assert "FleetError: a worker ended before it was ready, with exit code 1; expected it to start." in done.stderr


def test_a_notebook_is_told_to_put_its_classes_into_a_file(tmp_path):
    """A program that comes from no file, as cells of a notebook do."""
    command = [sys.executable, "-", "spawn"]
    done = subprocess.run(command, input=UNGUARDED, cwd=tmp_path, capture_output=True, text=True)
    assert "task: Net is defined in a notebook or at a prompt. Expected classes and functions that" in done.stderr


# ---- nothing is left behind ----

ENDLESS = """
import sys
from fedavg import LocalFleet, Plan, train

if __name__ == "__main__":
    fleet = LocalFleet()
    events = train(Plan(data="mnist", C=0.02, rounds=100000, workers=1, start_method=sys.argv[1]), fleet)
    next(events)
    print(*fleet.worker_pids, flush=True)
    for _ in events:
        pass
"""


def shared_files():
    places = [Path("/dev/shm"), Path(gettempdir())]
    return {path for place in places if place.is_dir() for path in place.iterdir() if path.name.startswith("pym-")}


@pytest.mark.parametrize("method", OTHERS)
def test_a_server_that_is_killed_leaves_no_worker_and_no_memory(method, tmp_path):
    before = shared_files()
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = [sys.executable, str(tmp_path / "endless.py"), method]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c) as server:
        workers = [int(pid) for pid in server.stdout.readline().split()]
        assert len(workers) == 1
        server.kill()
    for worker in workers:
        wait_until_gone(worker)
    assert shared_files() <= before


WIDTH = 54_321


def half_frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(8, WIDTH).requires_grad_(False), nn.AdaptiveAvgPool1d(16), nn.Linear(16, 3))


def test_the_server_keeps_no_copy_of_frozen_weights_beside_that_of_spawned_workers():
    gc.collect()
    gc.disable()  # so that nothing is freed by chance
    try:
        events = train(toy_plan(task=Task("half", half_frozen), start_method="spawn", workers=1, rounds=1))
        next(events)
        sizes = [
            each.untyped_storage().nbytes() for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)
        ]
        events.close()
    finally:
        gc.enable()
    assert 4 * 8 * WIDTH not in sizes
