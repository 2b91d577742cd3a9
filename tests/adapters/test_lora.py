"""Adapters: what is trained and travels, what stays, and that nothing of it is lost on the way."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import fedavg
from fedavg.adapters import adapted
from fedavg.engine.model import Model
from fedavg.engine.trainer import Trainer
from fedavg.errors import PlanError, RunDirError, TaskError
from fedavg.plan.identity import identity
from fedavg.setup import pinned, resolve_on_device
from fedavg.study.evaluate import evaluate
from fedavg.usage import SHARED, mappings
from toys import TOY, blobs, epoch, small_net, toy_data, toy_plan

#: It is imported by those who use it: every worker collects this file, and one runs it.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")

#: `small_net` is 8 x 16, ReLU, 16 x 3; its last layer is new.
HEADED = fedavg.Task("headed", small_net, head="2")
EXAMPLES = fedavg.Examples(*blobs(12, 0))


def lora_plan(**changes: object) -> fedavg.Plan:
    return toy_plan(**{"task": HEADED, "adapters": "lora:2", "rounds": 2, "workers": 1, **changes})


def names_of(model: Model) -> list[str]:
    return [slot.name for slot in model.slots]


# ---- in a plan ----


def test_adapters_are_given_as_object_or_text_and_count_in_the_digest():
    plan = fedavg.Plan(adapters=fedavg.LoRA(r=4, alpha=8))
    assert plan.adapters == "lora:4:8"
    assert plan.digest == fedavg.Plan(adapters="lora:4:8").digest != fedavg.Plan().digest
    assert fedavg.Plan(adapters="none").digest == fedavg.Plan().digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lora:0", "r is 0; expected a rank of at least 1"),
        ("lora:dropout=1", "dropout is 1.0; expected a share"),
        ("lora:rank=3", r"expected 'lora:\[r=8\]:\[alpha=16.0\]"),
        ("dora", "expected one of lora"),
    ],
)
def test_settings_that_can_not_be_are_refused(text, message):
    with pytest.raises(PlanError, match=message):
        fedavg.Plan(adapters=text)


def test_a_task_without_a_head_is_recorded_as_it_was_before_there_were_heads():
    assert not {"head", "adapters"} & identity(TOY).keys()
    assert "head" in identity(HEADED)


# ---- in a module ----


def test_the_change_is_b_times_a_scaled_by_alpha_over_r():
    layer = nn.Sequential(nn.Linear(2, 1, bias=False))
    nn.init.constant_(layer[0].weight, 5.0)
    module = adapted(fedavg.LoRA(r=1, alpha=3.0), layer, []).module
    down, up = (p for p in module.parameters() if p.requires_grad)
    with torch.no_grad():
        down.copy_(torch.tensor([[1.0, 2.0]]))
        up.copy_(torch.tensor([[10.0]]))
    assert module(torch.tensor([[1.0, 1.0]])).item() == 5 + 5 + 3 * 10 * (1 + 2)


def test_only_adapters_and_the_head_are_in_the_vector():
    task = fedavg.Task("headed", small_net, head="2", adapters=fedavg.LoRA(2))
    model = Model(task, seed=0)
    assert names_of(model) == ["0.lora_A.default.weight", "0.lora_B.default.weight", "2.weight", "2.bias"]
    assert len(model.vector) == 2 * (8 + 16) + 16 * 3 + 3
    assert model.frozen.numbers == 8 * 16 + 16
    fixed = Model(fedavg.Task("headed", small_net, head="2", adapters=fedavg.LoRA(2, fixed_a=True)), seed=0)
    assert names_of(fixed) == ["0.lora_B.default.weight", "2.weight", "2.bias"]
    without = Model(HEADED, seed=0)
    assert torch.equal(fixed.module[0].base_layer.weight, without.module[0].weight), "the base is drawn as ever"


@pytest.mark.parametrize(
    ("task", "adapters", "message"),
    [
        (fedavg.Task("t", small_net, head="last"), fedavg.LoRA(), "head has 'last', and the module has no such part"),
        (fedavg.Task("t", small_net), fedavg.LoRA(layers="query"), "'query'; expected all, or some of 0, 2"),
        (fedavg.Task("t", lambda: nn.Conv2d(1, 1, 3)), fedavg.LoRA(), "no linear layer outside of its head"),
    ],
)  # fmt: skip
def test_what_can_not_be_adapted_is_refused(task, adapters, message):
    with pytest.raises(TaskError, match=message):
        Model(fedavg.Task(task.name, task.build, head=task.head, adapters=adapters), seed=0)


def test_statistics_of_the_frozen_part_stay_in_training_too():
    def build():
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    model = Model(fedavg.Task("norm", build, head="2", adapters=fedavg.LoRA(2)), seed=0)
    assert not any("running" in name for name in names_of(model))
    assert model.frozen.numbers == 8 * 8 + 8 + 2 * 8 + 2 * 8
    model.module.train()
    x = blobs(12, 0)[0]
    trained = model.module(x)
    assert torch.equal(model.module[1].running_mean, torch.zeros(8))
    assert torch.equal(trained, model.module.eval()(x))


def test_adapters_count_in_evaluation_where_pytorch_would_take_its_fused_encoder():
    def build():
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    module = adapted(fedavg.LoRA(2), build(), []).module.eval()
    assert not any("out_proj.lora" in name for name, _ in module.named_parameters()), "attention never calls it"
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            nn.init.ones_(parameter)
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        fused = module(x)
    assert torch.allclose(fused, module(x).detach(), atol=1e-6)


class TakesWeights(nn.Module):
    """Never calls its second layer: it multiplies by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.first(x) @ self.second.weight.T


def test_adapters_that_the_module_passes_by_are_refused():
    trainer = Trainer(fedavg.Task("by", TakesWeights, adapters=fedavg.LoRA(2)), seed=0)
    with pytest.raises(TaskError, match=r"does not use 2 of its adapted weights \(second.lora_A.*layers=query\+value"):
        trainer.choose_engine("auto", EXAMPLES)


def test_a_transformer_of_hugging_face_is_adapted_on_the_fast_path_as_on_the_plain_one():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    task = fedavg.Task(
        "bert",
        lambda: BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=3, **sizes)),
        loss=lambda output, y: nn.functional.cross_entropy(output.logits, y),
        metrics={"accuracy": lambda output, y: output.logits.argmax(1) == y},
        head="classifier",
        adapters=fedavg.LoRA(2, layers="query+value"),
    )
    ids = torch.arange(48).view(8, 6) % 20
    examples = fedavg.Examples({"input_ids": ids, "attention_mask": (ids > 2).long()}, torch.arange(8) % 3)
    ends = {}
    for engine in ("graph", "plain"):
        trainer = Trainer(task, seed=0)
        trainer.choose_engine(engine, examples)
        start = trainer.weights.clone()
        with trainer.seeded(5):
            epoch(trainer, examples, 4, 0.5)
        ends[engine] = trainer.weights - start
    assert ends["plain"].norm() > 0
    assert (ends["graph"] - ends["plain"]).norm() <= 1e-4 * ends["plain"].norm()


# ---- in a run ----


def test_a_run_sends_the_adapters_alone_and_says_what_the_whole_model_would_be():
    result = fedavg.run(lora_plan())
    assert result.summary.parameters == 2 * (8 + 16) + 16 * 3 + 3
    clients = result.rows[0]["clients"]
    sent = result.summary.frozen
    assert sent["numbers"] == 8 * 16 + 16
    assert sent["whole_up"] == clients * 4 * (99 + 144)
    assert clients * 4 * 99 <= sent["up"] < clients * 4 * 99 + 200
    assert result.train_loss[-1] < result.train_loss[0]


def test_the_same_bits_however_many_workers():
    first, second = (fedavg.run(lora_plan(workers=workers)).summary for workers in (1, 2))
    assert first.model_sha256 == second.model_sha256


def test_masked_updates_have_the_same_sum_and_noised_ones_an_epsilon():
    plain = fedavg.run(lora_plan(C=1.0))
    masked = fedavg.run(lora_plan(C=1.0, secagg="complete:4:30"))
    near = zip(plain.model.parameters(), masked.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in near)
    private = fedavg.run(
        lora_plan(C=0.5, stages=("clip:0.5", "weigh:equal", "noise:1.0"), adapters="lora:2:fixed_a=true")
    )
    assert private.summary.privacy["epsilon"] > 0
    assert torch.equal(private.model[0].base_layer.weight, plain.model[0].base_layer.weight), "no noise where frozen"


def test_a_run_keeps_what_it_trained_and_goes_on_only_beside_the_same_frozen_weights(tmp_path):
    pretrained = tmp_path / "pretrained"
    pretrained.write_text("0.0")

    def build():
        net = small_net()
        nn.init.constant_(net[0].bias, float(pretrained.read_text()))
        return net

    task = fedavg.Task("base", build, head="2")
    plan = lora_plan(task=task)
    run = tmp_path / "run"
    result = fedavg.run(plan, run)
    recorded = json.loads((run / "run.json").read_text())["frozen"]
    with safe_open(run / "model.safetensors", "pt") as file:
        assert file.metadata() == {"frozen": recorded}
        assert sorted(file.keys()) == ["0.lora_A.default.weight", "0.lora_B.default.weight", "2.bias", "2.weight"]
    changed = {"task": task, "data": toy_data()}
    judged = evaluate(run, task=task, data=toy_data()).metrics["accuracy"]
    assert judged == result.accuracy[-1]
    assert evaluate(run / "model.safetensors", toy_data(), task, adapters="lora:2").metrics["accuracy"] == judged
    exported = fedavg.export_model(run, **changed).path
    with safe_open(exported, "pt") as file:
        assert "0.base_layer.weight" in file.keys()  # noqa: SIM118  a file is no dict

    pretrained.write_text("0.5")
    with pytest.raises(RunDirError, match=f"beside frozen weights with the fingerprint {recorded}"):
        fedavg.resume(run, rounds=3, **changed)
    with pytest.raises(TaskError, match=f"expected {recorded}"):
        evaluate(run, task=task, data=toy_data())
    with pytest.raises(TaskError, match=f"expected {recorded}"):
        evaluate(run / "model.safetensors", toy_data(), task, adapters="lora:2")


def test_a_device_with_other_frozen_weights_does_not_take_part():
    served = pinned(lora_plan())
    assert served.frozen == Model(resolve_on_device(served).task, 0).frozen.fingerprint
    resolve_on_device(served).new_trainer(EXAMPLES)
    others = fedavg.Task("headed", lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).apply(ones))
    with pytest.raises(TaskError, match=f"here; expected {served.frozen}. Install the pretrained model"):
        resolve_on_device(lora_plan(task=others, frozen=served.frozen)).new_trainer(EXAMPLES)
    with pytest.raises(TaskError, match="has nothing frozen here; expected"):
        resolve_on_device(toy_plan(frozen=served.frozen)).new_trainer(EXAMPLES)
    assert pinned(toy_plan()).frozen is None


def ones(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.ones_(module.weight)


WIDE = 1 << 21


class Wide(nn.Module):
    """16 MB of frozen weights beside a small net."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(WIDE, 2), requires_grad=False)
        self.net = small_net()

    def forward(self, x):
        return self.net(x + self.table[:1, :1] - 1)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells who has which memory")
def test_workers_share_the_frozen_weights_and_give_the_same_bits_however_they_start():
    """Each worker has 16 MB in memory that at most half counts for its own."""
    ends = {_shared_run(method) for method in ("fork", "spawn")}
    assert len(ends) == 1


def _shared_run(method: str) -> str:
    fleet, seen = fedavg.LocalFleet(), []

    def look(event):
        if isinstance(event, fedavg.Round):
            seen.extend(mapping for pid in fleet.worker_pids for mapping in mappings(pid))

    plan = toy_plan(task=fedavg.Task("wide", Wide), workers=2, rounds=1, start_method=method)
    summary = fedavg.run(plan, fleet=fleet, watch=look).summary
    assert summary.frozen["numbers"] == 2 * WIDE
    memory = [numbers for path, numbers in seen if not path.startswith("/") or path.startswith(SHARED)]
    shared = [numbers for numbers in memory if numbers["Rss"] * 1024 >= 8 * WIDE]
    assert len([numbers for numbers in shared if numbers["Pss"] <= 0.6 * numbers["Rss"]]) >= 2, method
    return summary.model_sha256
