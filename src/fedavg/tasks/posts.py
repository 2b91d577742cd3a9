"""The word LSTM for posts (§3 of the paper, "large-scale LSTM"): predict the next word.

Input: ids of words as (B, T) int64, T = 10 in the paper; 0 is padding, 1 an unknown word, 2 starts a post, and there
the model starts from zero. Output: (B, T, 10000) logits; targets: (B, T) ids, or -100 for padding, not a prediction.
An unknown word is learned like any other word, but predicting it never counts as right: otherwise a smaller vocabulary
would look like a better model.
"""

from functools import partial
from typing import Final

from torch import Tensor, nn

from fedavg.tasks.lstm import PeepholeLSTM
from fedavg.tasks.packing import pack
from fedavg.tasks.shakespeare import token_accuracy, token_cross_entropy, token_loss
from fedavg.tasks.task import Task

VOCABULARY: Final = 10_000
PADDING: Final = 0
UNKNOWN: Final = 1
BEGIN: Final = 2
#: An id that no model predicts and that, unlike -100, counts.
_NO_WORD: Final = -1


class WordLSTM(nn.Module):
    """Embedding of 192, one LSTM layer of 256, linear to the vocabulary: 4,950,544 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 192)
        self.lstm = PeepholeLSTM(192, 256)
        self.decoder = nn.Linear(256, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lstm(self.embedding(x), x == BEGIN)
        # The LSTM's memory is time-major; the decoder keeps that order and so copies nothing.
        logits: Tensor = self.decoder(h.transpose(0, 1)).transpose(0, 1)
        return logits


def known_word_accuracy(output: Tensor, y: Tensor) -> Tensor:
    """1 where the most likely word is the right one and is known; shape (predictions that count,)."""
    return token_accuracy(output, y.masked_fill(y == UNKNOWN, _NO_WORD))


POSTS_LSTM = Task(
    "posts-lstm",
    WordLSTM,
    loss=token_loss,
    metrics={"accuracy": known_word_accuracy, "loss": token_cross_entropy},
    collate=partial(pack, begin=BEGIN, padding=PADDING),
    eval_batch=50,
)
