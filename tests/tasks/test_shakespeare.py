"""The character LSTM: its size, what counts as a prediction, and that it learns."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedavg import trees
from fedavg.data import shakespeare as data
from fedavg.engine.trainer import Trainer
from fedavg.metrics import IGNORE
from fedavg.tasks.shakespeare import (
    BEGIN,
    PADDING,
    SHAKESPEARE_LSTM,
    VOCABULARY,
    CharLSTM,
    token_accuracy,
    token_cross_entropy,
    token_loss,
)
from fedavg.types import Examples
from toys import epoch


def test_it_has_the_papers_number_of_parameters() -> None:
    assert sum(p.numel() for p in SHAKESPEARE_LSTM.build().parameters()) == 866_578


def test_it_gives_logits_for_every_character() -> None:
    model = CharLSTM()
    x = torch.randint(0, VOCABULARY, (3, 80))
    output = model(x)
    assert output.shape == (3, 80, VOCABULARY)
    torch.testing.assert_close(output[1:2], model(x[1:2]))


def test_a_character_is_predicted_from_those_before_it_alone() -> None:
    model = CharLSTM()
    x = torch.randint(0, VOCABULARY, (2, 10))
    changed = x.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % VOCABULARY
    same = torch.isclose(model(x), model(changed)).all(2)
    assert same[:, :6].all()
    assert not same[:, 6:].any()


def test_loss_and_metrics_leave_out_what_is_not_predicted() -> None:
    # Of 3 tokens: sure of 0, of 1, undecided, sure of 2.
    output = torch.tensor([[[9.0, 0, 0], [0, 9, 0]], [[0, 0, 0], [0, 0, 9]]])
    y = torch.tensor([[0, IGNORE], [1, 0]])
    right, wrong = math.log(1 + 2 * math.exp(-9)), math.log(math.exp(9) + 2)
    assert token_accuracy(output, y).tolist() == [True, False, False]
    assert token_cross_entropy(output, y).tolist() == pytest.approx([right, math.log(3), wrong], abs=1e-6)
    assert float(token_loss(output, y)) == pytest.approx((right + math.log(3) + wrong) / 3, abs=1e-6)


def test_loss_is_that_of_classes_in_the_second_dimension() -> None:
    output, y = torch.randn(4, 7, 11), torch.randint(0, 11, (4, 7))
    torch.testing.assert_close(token_loss(output, y), F.cross_entropy(output.transpose(1, 2), y))


def test_its_loss_falls() -> None:
    torch.manual_seed(0)
    model = CharLSTM()
    x = torch.randint(0, 20, (1, 12)).repeat(4, 1)
    y = x.roll(-1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = SHAKESPEARE_LSTM.loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(VOCABULARY), rel=0.1)
    assert losses[-1] < losses[0] - 1


def test_a_line_begins_as_the_data_has_it() -> None:
    """Else nothing would be packed, and the model would not start afresh."""
    assert (BEGIN, PADDING, IGNORE) == (data.BEGIN, data.PADDING, data.IGNORE)


def lines(*lengths: int) -> Examples:
    """Texts of such lengths, padded to 80."""
    x, y = torch.full((len(lengths), 80), PADDING), torch.full((len(lengths), 80), IGNORE)
    for row, length in enumerate(lengths):
        text = torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(row))
        x[row, 0], x[row, 1:length], y[row, :length] = BEGIN, text[:-1], text
    return Examples(x, y)


@pytest.mark.parametrize("engine", ["plain", "graph"])
@pytest.mark.parametrize("batch", [3, 4, 7])
def test_packing_changes_neither_training_nor_metrics(engine: str, batch: int) -> None:
    texts = lines(5, 20, 30, 17, 9, 44, 2)
    texts.x[3, 0] = 65  # a piece that goes on with a text
    trained = []
    for task in (SHAKESPEARE_LSTM, replace(SHAKESPEARE_LSTM, collate=None)):
        trainer = Trainer(task, seed=0)
        trainer.choose_engine(engine, trees.take(texts, slice(3)))
        start = trainer.weights.clone()
        loss = epoch(trainer, texts, batch, 0.5)
        trained.append((trainer.weights - start, float(loss), trainer.evaluate(texts)))
    (packed, packed_loss, packed_metrics), (whole, whole_loss, whole_metrics) = trained
    # A step rounds each weight to its last digit, in both trainings: together at most 1.1e-4 of what one step changes.
    assert (packed - whole).norm() <= 1e-4 * whole.norm()
    assert packed_loss == pytest.approx(whole_loss, rel=1e-6)
    assert packed_metrics["accuracy"].tolist() == whole_metrics["accuracy"].tolist()
    assert packed_metrics["loss"].tolist() == pytest.approx(whole_metrics["loss"].tolist(), rel=1e-6)
