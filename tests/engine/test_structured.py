"""Inputs and targets that are tuples or dicts of tensors: the fast path equals the plain one."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedavg
from fedavg import ArrayData, Examples, Ragged, Task, trees
from fedavg.engine.trainer import Trainer
from toys import epoch


class TwoTowers(nn.Module):
    """Takes two inputs in order: a user's and an item's."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(5, 8), nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, user, item):
        return self.out(torch.tanh(self.left(user)) * self.right(item))


class Named(nn.Module):
    """Takes inputs by name, one of them a mask, and gives two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.classes, self.score = nn.Embedding(9, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, *, words, mask):
        weights = mask.float() / mask.sum(1, keepdim=True).clamp(min=1)
        mean = (self.embed(words) * weights[:, :, None]).sum(1)
        return {"classes": self.classes(mean), "score": self.score(mean)[:, 0]}


def two_losses(output, y):
    return F.cross_entropy(output["classes"], y["label"]) + 0.1 * F.mse_loss(output["score"], y["stars"])


def two_inputs(n):
    g = torch.Generator().manual_seed(1)
    x = (torch.randn(n, 5, generator=g), torch.randint(0, 9, (n,), generator=g))
    return Examples(x, torch.randint(0, 3, (n,), generator=g))


def named_inputs(n):
    g = torch.Generator().manual_seed(1)
    x = {"words": torch.randint(0, 9, (n, 4), generator=g), "mask": torch.rand(n, 4, generator=g) > 0.3}
    return Examples(x, {"label": torch.randint(0, 3, (n,), generator=g), "stars": torch.rand(n, generator=g)})


def points(n):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(1))


def itself(n):
    x = points(n)
    return Examples(x, x)


def regression(n):
    return Examples(points(n), points(n).sum(1, keepdim=True) + 0.5)


def several_labels(n):
    return Examples(points(n), points(n)[:, :4] > 0)


def auto_encoder():
    return nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6))


COUNT = {"count": lambda output, y: torch.ones(1)}
TASKS = {
    "two inputs": (Task("towers", TwoTowers), two_inputs),
    "named inputs": (Task("named", Named, loss=two_losses, metrics=COUNT), named_inputs),
    "autoencoder": (Task("auto", auto_encoder, loss=F.mse_loss), itself),
    "regression": (Task("line", lambda: nn.Linear(6, 1), loss=F.mse_loss), regression),
    "several labels": (
        Task("labels", lambda: nn.Linear(6, 4), loss=F.binary_cross_entropy_with_logits, metrics=COUNT),
        several_labels,
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_fast_path_equals_the_plain_one(name):
    """Two epochs over 11 examples in batches of 4, the last of 3."""
    task, make = TASKS[name]
    ends, losses = {}, {}
    for engine in ("graph", "plain"):
        trainer = Trainer(task, seed=0)
        trainer.choose_engine(engine, trees.take(make(11), slice(4)))
        assert trainer.engine.name.split()[0] == engine
        losses[engine] = [float(epoch(trainer, make(11), 4, 0.1)) for _ in range(2)]
        ends[engine] = trainer.weights.clone()
        trainer.evaluate(make(11))
    torch.testing.assert_close(ends["graph"], ends["plain"], rtol=1e-4, atol=1e-6)
    assert losses["graph"] == pytest.approx(losses["plain"], rel=1e-4)
    assert losses["graph"][1] != losses["graph"][0]


@pytest.mark.parametrize("name", TASKS)
def test_a_plan_runs_on_them_with_the_same_bits_on_any_number_of_workers(name):
    task, make = TASKS[name]
    examples = make(24)
    parts = [np.arange(k, 24, 3)[: 8 - k] for k in range(3)]
    digests = set()
    for workers in (1, 2):
        data = ArrayData("structured", examples.x, examples.y, parts, make(6))
        plan = fedavg.Plan(task=task, data=data, C=1, B=4, rounds=2, workers=workers, holdout=0.2)
        digests.add(fedavg.run(plan).summary.model_sha256)
    assert len(digests) == 1


def test_pooled_data_keeps_its_form():
    task, make = TASKS["named inputs"]
    examples = make(12)
    data = ArrayData("s", examples.x, examples.y, [np.arange(6), np.arange(6, 12)], make(4))
    result = fedavg.run(fedavg.Plan(task=task, data=data, algorithm="sgd", B=4, rounds=3, workers=1))
    assert np.isfinite(result.train_loss).all()


# ---- a transformer of Hugging Face ----


def tiny_bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=12, num_labels=3, attn_implementation="eager",
    )  # fmt: skip
    return BertForSequenceClassification(config)


def texts(n):
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (n,), generator=g)
    x = {
        "input_ids": torch.randint(0, 30, (n, 8), generator=g),
        "attention_mask": (torch.arange(8) < lengths[:, None]).long(),
    }
    return Examples(x, torch.randint(0, 3, (n,), generator=g))


BERT = Task(
    "bert",
    tiny_bert,
    loss=lambda output, y: F.cross_entropy(output.logits, y),
    metrics={"accuracy": lambda output, y: output.logits.argmax(1) == y},
)


def test_a_transformer_of_hugging_face_trains_on_the_fast_path_as_on_the_plain_one():
    """Its output is a ModelOutput; dropout draws the same numbers on both."""
    ends = {}
    for engine in ("auto", "plain"):
        trainer = Trainer(BERT, seed=0)
        trainer.choose_engine(engine, trees.take(texts(8), slice(4)))
        start = trainer.weights.clone()
        with trainer.seeded(5):
            epoch(trainer, texts(8), 4, 0.1)
        ends[engine] = trainer.weights - start
        if engine == "auto":
            assert trainer.engine.name.startswith("graph"), trainer.engine.reason
    assert (ends["auto"] - ends["plain"]).norm() <= 1e-4 * ends["plain"].norm()


# ---- sequences of unlike lengths ----


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, words, mask):
        h = self.embed(words) * mask[:, :, None]
        return self.out(h.cumsum(1)).transpose(1, 2)


def sequences(lengths):
    g = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 20, (length + 1,), generator=g) for length in lengths]
    return Examples(Ragged.of([row[:-1] for row in rows]), Ragged.of([row[1:] for row in rows]))


def with_mask(x, y):
    return (x.padded(0), x.mask().float()), y.padded(-100)


@pytest.mark.parametrize("engine", ["graph", "plain"])
def test_sequences_of_unlike_lengths_are_padded_batch_by_batch(engine):
    """One step on a batch equals a step on the same texts, padded by hand."""
    task = Task("words", Words, collate=with_mask)
    ragged = sequences([3, 9, 5])
    by_hand = Examples(*with_mask(ragged.x, ragged.y))
    assert by_hand.y.shape == (3, 16)
    ends = []
    for one, examples in ((task, ragged), (Task("words", Words), by_hand)):
        trainer = Trainer(one, seed=0)
        trainer.choose_engine(engine, examples)
        loss = float(epoch(trainer, examples, 3, 0.1))
        ends.append((trainer.weights.clone(), loss))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == pytest.approx(ends[1][1])


def test_clients_with_texts_of_unlike_lengths_train_together():
    examples, test = sequences([3, 9, 5, 2, 7, 1, 4, 12]), sequences([2, 8])
    data = ArrayData("texts", examples.x, examples.y, [np.array([0, 7, 3]), np.array([1, 2, 4, 5, 6])], test)
    assert [int(n) for n in data.client(0).x.lengths] == [3, 12, 2]
    task = Task("words", Words, collate=with_mask)
    ends = {
        fedavg.run(fedavg.Plan(task=task, data=data, C=1, B=2, rounds=2, workers=workers)).summary.model_sha256
        for workers in (1, 2)
    }
    assert len(ends) == 1


def test_texts_without_a_collate_are_refused_with_a_remedy():
    trainer = Trainer(Task("words", lambda: nn.Embedding(20, 20)), seed=0)
    with pytest.raises(fedavg.FedAvgError, match=r"x \(3, '\?'\) torch.int64.*collate"):
        trainer.choose_engine("auto", sequences([3, 9, 5]))
