"""A user's own parts, as objects of a script: in runs with several workers, in records and in resumed runs."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch.nn.functional as F
from torch import nn

import fedavg
from fedavg.algorithms.fedavg import FedAvg
from fedavg.codecs.dense import Float32
from fedavg.errors import PlanError, RunDirError
from fedavg.plan import Plan
from fedavg.stages import Clip, Stage
from fedavg.tasks import Task
from toys import TOY, small_net, toy_data, toy_plan


def own_algorithm(factor, name="Damped"):
    """A class of a function has no import name, as one of a script or a notebook."""

    @dataclass(frozen=True)
    class Damped(FedAvg):
        name = "damped"
        factor: float

        def server_update(self, state, total, work):
            return replace(state, weights=(state.weights.double() + self.factor * total.mean).float())

    return Damped(factor)


def other_algorithm(factor):
    @dataclass(frozen=True)
    class Damped(FedAvg):
        name = "damped"
        factor: float

        def server_update(self, state, total, work):
            return replace(state, weights=(state.weights.double() + self.factor**2 * total.mean).float())

    return Damped(factor)


def read_only_codec():
    class Plain(Float32):
        """As short as can be: what numpy reads from bytes may not be written."""

        name = "plain"

        def unpack(self, frame, size):
            return np.frombuffer(frame, "<f4")

    return Plain()


def test_a_codec_may_give_what_it_reads_from_bytes():
    plan = toy_plan(codec=read_only_codec(), workers=1, rounds=1)
    assert fedavg.run(plan).summary.model_sha256 == fedavg.run(replace(plan, codec="float32")).summary.model_sha256


def own_codec():
    class Reversed(Float32):
        """The numbers in reverse order; not a dataclass of its own."""

        name = "reversed"

        def pack(self, values, rng):
            return super().pack(np.ascontiguousarray(values[::-1]), rng)

        def unpack(self, frame, size):
            return np.ascontiguousarray(super().unpack(frame, size)[::-1])

    return Reversed()


def own_stage(factor=0.5):
    class Scaled(Stage):
        def __init__(self, factor):
            self.factor = factor

        def on_sum(self, total, work, rng):
            return replace(total, vector=total.vector * self.factor)

    return Scaled(factor)


def own_plan(**changes):
    parts = {"algorithm": own_algorithm(0.5), "codec": own_codec(), "stages": [Clip(5.0), own_stage()]}
    return toy_plan(**{"rounds": 5, **parts, **changes})


def parts_of(plan):
    return {name: getattr(plan, name) for name in ("task", "data", "algorithm", "codec", "stages")}


class Interrupted(Exception):
    pass


def start_and_stop(plan, path, round=2):
    def watch(event):
        if event.round == round:
            raise Interrupted

    with pytest.raises(Interrupted):
        fedavg.run(plan, path, watch)


def test_own_parts_do_what_they_say_on_any_number_of_workers():
    one, two = (fedavg.run(own_plan(workers=workers)).summary.model_sha256 for workers in (1, 2))
    assert one == two
    halved = fedavg.run(own_plan(algorithm="fedavg", stages=[Clip(5.0), own_stage(0.25)])).summary.model_sha256
    assert halved == one, "half of a half is a quarter"
    assert fedavg.run(own_plan(algorithm="fedavg")).summary.model_sha256 != one


def test_a_run_of_own_parts_is_resumed_from_python(tmp_path):
    expected = fedavg.run(own_plan()).summary.model_sha256
    start_and_stop(own_plan(), tmp_path / "run")
    assert fedavg.resume(tmp_path / "run", **parts_of(own_plan())).summary.model_sha256 == expected


def test_what_to_pass_is_said(tmp_path):
    start_and_stop(own_plan(), tmp_path / "run")
    message = (
        r"objects that no file can hold \(task, data, algorithm, codec, stages\); give them again: fedavg.resume\('"
    )
    with pytest.raises(RunDirError, match=message):
        fedavg.resume(tmp_path / "run")
    with pytest.raises(RunDirError, match=r"objects that no file can hold \(codec\)"):
        fedavg.resume(tmp_path / "run", **{k: v for k, v in parts_of(own_plan()).items() if k != "codec"})


LINEAR = Task("mine", lambda: nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": own_algorithm(0.25)}, "algorithm: .*/run was started with another one: factor was 0.5, and"),
        ({"algorithm": other_algorithm(0.5)}, "algorithm: .* was started with another one: class was .*Damped"),
        ({"stages": [Clip(5.0), own_stage(0.75)]}, "stages: .* another one: factor was 0.5, and is 0.75"),
        ({"codec": Float32()}, "codec: .* was started with another one"),
        ({"task": replace(TOY, loss=lambda o, y: 2 * F.cross_entropy(o, y))}, "task: .* another one: loss was"),
        ({"task": LINEAR}, "task: .* another one: name was 'toy', and is 'mine'"),
        ({"lr": 0.2}, "lr: .*/run was started with 0.1; got 0.2. A run keeps its plan: only rounds may be raised"),
        ({"rounds": 3}, "rounds: .* has 5; got 3. A run can only be made longer"),
    ],
)  # fmt: skip
def test_a_resume_with_other_parts_is_refused_and_says_which(tmp_path, change, message):
    start_and_stop(own_plan(), tmp_path / "run")
    with pytest.raises(RunDirError, match=message):
        fedavg.resume(tmp_path / "run", **{**parts_of(own_plan()), **change})


SCALE = 1.0


def scaled_loss(output, y):
    return SCALE * F.cross_entropy(output, y)


def test_another_loss_behind_the_same_source_is_refused(tmp_path, monkeypatch):
    """The source of the loss is the same, what it computes is not."""
    task = Task("mine", small_net, loss=scaled_loss)
    start_and_stop(toy_plan(task=task), tmp_path / "run")
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(RunDirError, match="task: .* another one: loss on test examples was"):
        fedavg.resume(tmp_path / "run", task=task, data=toy_data())


def scaled_net():
    module = small_net()
    module[0].weight.data.mul_(SCALE)
    return module


def test_other_initial_weights_are_refused(tmp_path, monkeypatch):
    task = Task("mine", scaled_net)
    start_and_stop(toy_plan(task=task), tmp_path / "run")
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(RunDirError, match="task: .* another one: initial weights was"):
        fedavg.resume(tmp_path / "run", task=task, data=toy_data())


def test_plans_with_the_same_name_and_another_loss_have_other_digests():
    one = Task("mine", small_net)
    other = Task("mine", small_net, loss=lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1))
    assert toy_plan(task=one).digest == toy_plan(task=Task("mine", small_net)).digest
    assert toy_plan(task=one).digest != toy_plan(task=other).digest
    assert toy_plan(algorithm=own_algorithm(0.5)).digest == toy_plan(algorithm=own_algorithm(0.5)).digest
    assert toy_plan(algorithm=own_algorithm(0.5)).digest != toy_plan(algorithm=own_algorithm(0.25)).digest
    assert toy_plan(algorithm=own_algorithm(0.5)).digest != toy_plan(algorithm=other_algorithm(0.5)).digest


def test_code_by_its_import_name_is_recorded_by_its_source(tmp_path, monkeypatch):
    module = tmp_path / "own_rules.py"
    module.write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    plan = toy_plan(algorithm="own_rules:Slow:rate=0.5")
    start_and_stop(plan, tmp_path / "run")
    assert "rate" in json.loads((tmp_path / "run/run.json").read_text())["parts"]["algorithm"]
    assert fedavg.resume(tmp_path / "run", task=TOY, data=toy_data()).summary.rounds == 4
    import own_rules

    assert Plan(algorithm=own_rules.Slow(0.25)).algorithm == "own_rules:Slow:0.25", "objects of modules have a text"


RULES = """
from dataclasses import dataclass, replace
from fedavg.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Slow(FedAvg):
    name = "slow"
    rate: float = 1.0

    def server_update(self, state, total, work):
        return replace(state, weights=(state.weights.double() + self.rate * total.mean).float())
"""


@pytest.mark.parametrize("eval_every", [1, 3])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_is_extended(tmp_path, caplog, eval_every, stopped):
    """As if it had been planned so, without a word of damage; also what is evaluated is the same."""
    expected = fedavg.run(toy_plan(rounds=9, eval_every=eval_every))
    short = toy_plan(rounds=4, eval_every=eval_every)
    if stopped:
        start_and_stop(short, tmp_path / "run")
    else:
        fedavg.run(short, tmp_path / "run")
    got = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data(), rounds=9)
    assert got.summary.model_sha256 == expected.summary.model_sha256
    assert got.rounds.tolist() == expected.rounds.tolist()
    assert got.accuracy.tolist() == expected.accuracy.tolist()
    assert (got.plan.rounds, got.plan.digest) == (9, expected.plan.digest)
    again = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data())
    assert again.summary.rounds == 9
    further = fedavg.resume(tmp_path / "run", task=TOY, data=toy_data(), rounds=10)
    assert further.summary.rounds == 10
    assert caplog.messages == []


def test_an_extended_run_that_was_stopped_goes_on(tmp_path):
    expected = fedavg.run(toy_plan(rounds=9)).summary.model_sha256
    fedavg.run(toy_plan(rounds=4), tmp_path / "run")

    def watch(event):
        if event.round == 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        fedavg.resume(tmp_path / "run", watch, task=TOY, data=toy_data(), rounds=9)
    assert fedavg.resume(tmp_path / "run", task=TOY, data=toy_data()).summary.model_sha256 == expected


def test_a_run_whose_rate_depends_on_its_rounds_is_not_extended(tmp_path):
    fedavg.run(toy_plan(rounds=4, lr="cosine:0.1"), tmp_path / "run")
    with pytest.raises(RunDirError, match="has 4 and lr 'cosine:0.1', which depends on them"):
        fedavg.resume(tmp_path / "run", task=TOY, data=toy_data(), rounds=9)


def test_a_server_refuses_what_devices_can_not_have(tmp_path):
    from fedavg.programs.servable import Address, Options
    from fedavg.programs.serve import serve

    plan = Plan(data="mnist", algorithm=own_algorithm(0.5))
    with pytest.raises(PlanError, match=r"algorithm: got .*Damped.*no text form.*'my_package.module:Name'"):
        serve(plan, Options(Address("127.0.0.1", 0), tmp_path))
