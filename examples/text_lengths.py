"""Text whose examples have different lengths.

Reviews are lists of word numbers, short and long. `fedavg.from_clients` keeps them as they are; the task's `collate`
pads each batch to its longest review, and hands the module a mask that says which words are real.

Run it:
    python examples/text_lengths.py

It prints how long the reviews are, and the accuracy on new reviews as training goes on.
"""

import sys

import numpy as np
import torch
from torch import nn

import fedavg

TINY = "--tiny" in sys.argv
GOOD, BAD = ["good", "great", "fine", "lovely", "best"], ["bad", "poor", "awful", "dull", "worst"]
OTHERS = ["the", "film", "was", "and", "so", "plot", "actors", "a", "it", "that", "very", "quite", "story"]
NUMBER = {word: n for n, word in enumerate(["(padding)", *GOOD, *BAD, *OTHERS])}


def reviews(reviewer: int, count: int) -> tuple[list[list[int]], list[int]]:
    """Reviews of 3 to 30 words. Some reviewers write long ones, and some mostly bad ones."""
    rng = np.random.default_rng(reviewer)
    mood, longest = rng.uniform(0.2, 0.8), int(rng.integers(6, 31))
    texts, labels = [], []
    for _ in range(count):
        good = rng.random() < mood
        words = [str(rng.choice(GOOD if good else BAD)), *rng.choice(OTHERS, int(rng.integers(2, longest)))]
        texts.append([NUMBER[str(word)] for word in rng.permutation(words)])
        labels.append(int(good))
    return texts, labels


class Reader(nn.Module):
    """A recurrent network over the words; its state at the last real word decides."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(NUMBER), 16)
        self.read = nn.GRU(16, 32, batch_first=True)
        self.judge = nn.Linear(32, 2)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states, _ = self.read(self.words(words))  # (B, T, 32)
        last = mask.sum(1) - 1
        return self.judge(states[torch.arange(len(words)), last])


def padded(x: fedavg.Ragged, y: torch.Tensor):
    """A batch as two tensors of shape (B, T), T being that of its longest review."""
    return (x.padded(0), x.mask().long()), y


task = fedavg.Task("reviews", Reader, collate=padded)
data = fedavg.from_clients([reviews(k, 30) for k in range(6 if TINY else 30)], test=reviews(1000, 300))
plan = fedavg.Plan(
    task=task, data=data, C=0.3, E=2, B=10, lr=0.01, optimizer="adam", rounds=1 if TINY else 20, eval_every=5
)

if __name__ == "__main__":
    lengths = np.concatenate([data.client(k).x.lengths for k in range(len(data))])
    print(f"{len(data)} reviewers, {len(lengths)} reviews of {lengths.min()} to {lengths.max()} words")
    result = fedavg.run(plan)
    for round, accuracy in zip(result.rounds, result.accuracy, strict=True):
        print(f"round {round}: accuracy {accuracy:.3f}")
