"""The character LSTM for Shakespeare (§3 of the paper): predict the next character.

Input: ids of characters as (B, T) int64, T = 80 in the paper; output: (B, T, 258) logits; targets: (B, T) ids, or -100
where there is nothing to predict. A line starts with the id 256, wherever in a row: the model starts from zero there.
"""

from functools import partial
from typing import Final

import torch.nn.functional as F
from torch import Tensor, nn

from fedavg.metrics import IGNORE
from fedavg.tasks.lstm import PeepholeLSTM
from fedavg.tasks.packing import pack
from fedavg.tasks.task import Task

#: 256 bytes and two more (begin, padding): this gives the paper's number of parameters.
VOCABULARY: Final = 258
BEGIN: Final = 256
PADDING: Final = 257


class CharLSTM(nn.Module):
    """Embedding of 8, two LSTM layers of 256, linear to the vocabulary: 866,578 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.lower = PeepholeLSTM(8, 256)
        self.upper = PeepholeLSTM(256, 256)
        self.decoder = nn.Linear(256, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        starts = x == BEGIN
        h = self.upper(self.lower(self.embedding(x), starts), starts)
        # The LSTM's memory is time-major; the decoder keeps that order and so copies nothing.
        logits: Tensor = self.decoder(h.transpose(0, 1)).transpose(0, 1)
        return logits


def token_loss(output: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy over the predictions that count; output (B, T, V), y (B, T).

    One row per prediction, in the order of the LSTM's memory: cross entropy over (B, V, T) takes 1.5 times as long.
    """
    return F.cross_entropy(output.transpose(0, 1).flatten(0, 1), y.t().flatten())


def token_accuracy(output: Tensor, y: Tensor) -> Tensor:
    """1 where the most likely token is the right one; shape (predictions that count,)."""
    counted = y != IGNORE
    return (output.argmax(2) == y)[counted]


def token_cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """The loss of each prediction that counts, 1-D."""
    counted = y != IGNORE
    return F.cross_entropy(output[counted], y[counted], reduction="none")


SHAKESPEARE_LSTM = Task(
    "shakespeare-lstm",
    CharLSTM,
    loss=token_loss,
    metrics={"accuracy": token_accuracy, "loss": token_cross_entropy},
    collate=partial(pack, begin=BEGIN, padding=PADDING),
    eval_batch=50,
)
