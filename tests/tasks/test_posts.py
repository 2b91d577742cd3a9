"""The word LSTM: its size, and that unknown words and padding are judged as its page says."""

import pytest
import torch

from fedavg.data import posts as data
from fedavg.metrics import IGNORE, checked_sums
from fedavg.tasks.posts import BEGIN, PADDING, POSTS_LSTM, UNKNOWN, VOCABULARY, WordLSTM, known_word_accuracy


def test_it_has_the_papers_number_of_parameters() -> None:
    assert sum(p.numel() for p in POSTS_LSTM.build().parameters()) == 4_950_544


def test_ids_are_those_of_the_data() -> None:
    assert (BEGIN, PADDING, UNKNOWN, IGNORE) == (data.BEGIN, data.PADDING, data.UNKNOWN, data.IGNORE)


def test_an_unknown_word_counts_as_wrong_and_padding_does_not_count() -> None:
    predicted = torch.tensor([[5, 5, UNKNOWN, 7]])
    output = torch.nn.functional.one_hot(predicted, 9).float()
    y = torch.tensor([[5, 6, UNKNOWN, IGNORE]])
    assert known_word_accuracy(output, y).tolist() == [True, False, False]
    assert checked_sums(POSTS_LSTM.judged_by["loss"], output, y)[1] == 3


def test_an_unknown_word_is_learned() -> None:
    output = torch.zeros(1, 1, 4, requires_grad=True)
    POSTS_LSTM.loss(output, torch.tensor([[UNKNOWN]])).backward()
    assert output.grad is not None
    assert output.grad.flatten().tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25])


def test_its_loss_falls() -> None:
    torch.manual_seed(0)
    model = WordLSTM()
    words = torch.randint(2, VOCABULARY, (4, 11))
    x, y = words[:, :-1], words[:, 1:].clone()
    y[:, 7:] = IGNORE
    losses = []
    for _ in range(4):
        loss = POSTS_LSTM.loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= 5.0 * gradient
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
