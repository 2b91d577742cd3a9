"""As many invented authors as asked for, of the form of `posts`: for scale runs and tests. Nothing is stored.

A language is drawn from the seed: word frequencies follow Zipf's law; the commonest words are shared by all topics and
each topic orders the others in its own way; every word has a favourite successor, which is what a model can learn. An
author has a favourite topic and a number of posts from a power law. A client is generated when asked for, from
rng(seed, client), so that half a million of them cost no more than the list of their sizes.

x, y: (n_k, 10) int64, ids as in `fedavg.data.posts`; a post is one example of ten words, none of them unknown.
"""

from functools import cached_property
from hashlib import blake2b
from typing import Final, final

import numpy as np

from fedavg.data.dataset import Dataset, Request
from fedavg.data.posts import BEGIN, PADDING, UNROLL, VOCABULARY, WORDS
from fedavg.data.sequences import windows
from fedavg.errors import DataError
from fedavg.seeds import NONE, rng
from fedavg.types import Examples, FederatedData

#: Changes with what is generated, so that a run is not resumed on other data.
_VERSION: Final = 1
_CLIENTS: Final = 10_000
_TOPICS: Final = 50
#: The commonest words, the same in every topic.
_SHARED: Final = 200
_FAVOURITE_TOPIC: Final = 0.7
_FAVOURITE_SUCCESSOR: Final = 0.5
#: Posts per author: P(n_k >= n) = (n / 2)^-1.2, at most 500 of ten words (the paper's 5,000 words).
_SMALLEST, _TAIL, _LARGEST = 2, 1.2, 500
_TEST_AUTHORS: Final = 500
_TEST_POSTS: Final = 20


def load(request: Request) -> FederatedData:
    return SyntheticPosts(request.clients or _CLIENTS, request.seed)


@final
class SyntheticPosts(FederatedData):
    """Invented authors; the test set is by others, who are not clients."""

    name = "synthetic-posts"

    def __init__(self, clients: int, seed: int) -> None:
        self._seed = seed
        draw = rng(seed, NONE, NONE, "partition").random(clients)
        self._sizes = np.minimum(_SMALLEST * (1 - draw) ** (-1 / _TAIL), _LARGEST).astype(np.int64)
        language = rng(seed, NONE, NONE, "language")
        count = VOCABULARY - WORDS
        self._cumulative = np.cumsum(1 / np.arange(1, count + 1))
        self._cumulative /= self._cumulative[-1]
        self._by_rank = np.tile(np.arange(count, dtype=np.int16), (_TOPICS, 1))
        self._by_rank[:, _SHARED:] = language.permuted(self._by_rank[:, _SHARED:], axis=1)
        self._successor = language.permutation(count).astype(np.int16)

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    def client(self, k: int) -> Examples:
        if not 0 <= k < len(self._sizes):
            raise DataError(f"{self.name} has no client {k}: expected 0 to {len(self._sizes) - 1}.")
        return _examples(self._words(int(self._sizes[k]), rng(self._seed, NONE, k, "synthetic-posts")))

    @cached_property
    def _test(self) -> Examples:
        authors = [rng(self._seed, NONE, k, "synthetic-test") for k in range(_TEST_AUTHORS)]
        return _examples(np.concatenate([self._words(_TEST_POSTS, author) for author in authors]))

    @property
    def test(self) -> Examples:
        return self._test

    @cached_property
    def fingerprint(self) -> str:
        made_of = (self.name, _VERSION, len(self._sizes), self._seed)
        return blake2b(repr(made_of).encode(), digest_size=16).hexdigest()

    def _words(self, posts: int, author: np.random.Generator) -> np.ndarray:
        """Posts of ten words each, shape (posts, 10), as numbers from 0."""
        favourite = author.integers(_TOPICS)
        topics = np.where(author.random(posts) < _FAVOURITE_TOPIC, favourite, author.integers(_TOPICS, size=posts))
        ranks = np.searchsorted(self._cumulative, author.random((posts, UNROLL)))
        words = self._by_rank[topics[:, None], ranks]
        follows = author.random((posts, UNROLL)) < _FAVOURITE_SUCCESSOR
        for at in range(1, UNROLL):
            words[:, at] = np.where(follows[:, at], self._successor[words[:, at - 1]], words[:, at])
        return words


def _examples(words: np.ndarray) -> Examples:
    lengths = np.full(len(words), UNROLL)
    return Examples(*windows(words.reshape(-1).astype(np.int64) + WORDS, lengths, UNROLL, BEGIN, PADDING))


SYNTHETIC_POSTS = Dataset(
    name="synthetic-posts",
    summary="any number of invented authors: Zipf words, topics, power-law sizes; next word",
    licence="generated",
    clients=_CLIENTS,
    partitions=("natural",),
    files=(),
    load=load,
    built_in=True,
)
