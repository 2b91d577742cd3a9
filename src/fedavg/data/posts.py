"""Posts by author (§3, "large-scale"): a client is what one author wrote in one month; predict the next word.

The paper's social network is not public; public posts of members of the US Congress stand in. What follows the
literature:

- the vocabulary has 10,000 ids: padding, unknown, begin, and the 9,997 most frequent words of the TRAINING authors;
- a client has at most 5,000 words; test authors are disjoint from training authors, drawn by the seed;
- a post starts with BEGIN and is cut every 10 words; every word is predicted once, nothing else is;
- padding is left out of loss and accuracy (IGNORE); an unknown word is the id UNKNOWN, is learned as such, and must be
  counted as WRONG in accuracy even where it is predicted, so that results with other vocabularies compare (McMahan,
  Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, 2018, §3).

x, y: (N, 10) int64. Words are stored once as numbers in a file; a client is read from it when asked for, so memory
does not grow with the number of clients.
"""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Final, final

import numpy as np

from fedavg.data.dataset import Dataset, RemoteFile, Request, StoredFile
from fedavg.data.download import obtain_all
from fedavg.data.location import cache_directory
from fedavg.data.partition import some_of
from fedavg.data.posts_store import PostsStore, Writing, open_or_prepare
from fedavg.data.sequences import IGNORE, pieces_of, windows
from fedavg.errors import DataError
from fedavg.seeds import NONE, rng
from fedavg.types import Examples, FederatedData

UNROLL: Final = 10
PADDING: Final = 0
UNKNOWN: Final = 1
BEGIN: Final = 2
#: Ids below this are not words.
WORDS: Final = 3
VOCABULARY: Final = 10_000

_TEST_AUTHORS: Final = 0.1
#: 340,000 predicted words, so that accuracy is known to 0.1 %. The paper takes 100,000 posts: slow on a CPU.
_TEST_POSTS: Final = 10_000


def load(request: Request) -> FederatedData:
    (file,) = obtain_all(POSTS, request.data_dir)
    folder = cache_directory(request.data_dir) / "posts" / "prepared"
    store = open_or_prepare(folder, lambda: _read_jsonl(file.path))
    return PostsData(store, request.seed, request.clients)


@final
class PostsData(FederatedData):
    """The clients of the training authors, read when asked for; the posts of the other authors are the test."""

    name = "posts"

    def __init__(self, store: PostsStore, seed: int, clients: int | None = None, vocabulary: int = VOCABULARY) -> None:
        self._store, self._seed, self._vocabulary = store, seed, vocabulary
        self._is_test = _test_authors(store.authors, seed)[store.client_author]
        draw = rng(seed, NONE, NONE, "partition")
        ours = some_of(list(np.flatnonzero(~self._is_test)), clients, draw)
        self._clients = np.array(ours, np.int64)
        self._ids = _vocabulary(store, ~self._is_test, vocabulary)
        pieces = np.concatenate([[0], np.cumsum(pieces_of(store.post_words, UNROLL))])
        per_client = pieces[store.client_posts[1:]] - pieces[store.client_posts[:-1]]
        self._sizes: np.ndarray = per_client[self._clients]

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    def client(self, k: int) -> Examples:
        if not 0 <= k < len(self._clients):
            raise DataError(f"posts has no client {k}: expected 0 to {len(self._clients) - 1}.")
        first, last = self._store.client_posts[self._clients[k] : self._clients[k] + 2]
        return self._examples(*self._store.read(int(first), int(last)))

    @cached_property
    def _test(self) -> Examples:
        posts = np.flatnonzero(np.repeat(self._is_test, np.diff(self._store.client_posts)))
        draw = rng(self._seed, NONE, NONE, "test-posts")
        chosen = np.sort(draw.choice(posts, min(_TEST_POSTS, len(posts)), replace=False))
        read = [self._store.read(int(post), int(post) + 1) for post in chosen]
        return self._examples(*(np.concatenate(part) for part in zip(*read, strict=True)))

    @property
    def test(self) -> Examples:
        return self._test

    @cached_property
    def fingerprint(self) -> str:
        made_of = (self._store.digest, self._seed, len(self._clients), self._vocabulary, UNROLL, _TEST_POSTS)
        return blake2b(repr(made_of).encode(), digest_size=16).hexdigest()

    def _examples(self, words: np.ndarray, lengths: np.ndarray) -> Examples:
        return Examples(*windows(self._ids[words], lengths, UNROLL, BEGIN, PADDING))


def _test_authors(count: int, seed: int) -> np.ndarray:
    """True for the authors that are used only for testing, shape (authors,)."""
    chosen = rng(seed, NONE, NONE, "test-authors").permutation(count)[: max(1, round(count * _TEST_AUTHORS))]
    return np.isin(np.arange(count), chosen)


def _vocabulary(store: PostsStore, clients: np.ndarray, size: int) -> np.ndarray:
    """The model's id of each word of the store, from the most frequent words of these clients."""
    counts = store.count_words(clients)
    frequent = np.argsort(-counts, kind="stable")[: size - WORDS]
    frequent = frequent[counts[frequent] > 0]
    ids = np.full(len(counts), UNKNOWN, np.int64)
    ids[frequent] = np.arange(WORDS, WORDS + len(frequent))
    return ids


def _read_jsonl(path: Path) -> Iterator[Writing]:
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        yield from parse_jsonl(lines)


def parse_jsonl(lines: Iterable[str]) -> Iterator[Writing]:
    """Each line is a client: {"author": id, "month": "2018-08", "posts": [text, ...]}."""
    for number, line in enumerate(lines, 1):
        try:
            client = json.loads(line)
            yield Writing(client["author"], client["posts"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"line {number} of the posts is not a client ({error!r}): expected a JSON object with author "
                "and posts. Fetch the file again."
            ) from error


def facts(data: FederatedData) -> Mapping[str, int]:
    """The words to predict, and how many of them the vocabulary does not have."""
    assert data.test
    y = data.test.y
    return {"test_words": int((y != IGNORE).sum()), "unknown_words": int((y == UNKNOWN).sum())}


POSTS = Dataset(
    name="posts",
    summary="public posts of US members of Congress by author and month, next word",
    licence="public posts; for research",
    clients=None,
    partitions=("natural",),
    files=(
        RemoteFile(
            (
                StoredFile(
                    "posts/congress.jsonl.xz",
                    "1e669a16711074bc43de10dee3f436a7e3eb7ec8a93d23cfa522bbb29748c5fe",
                    52771676,
                ),
                StoredFile(
                    "posts/congress.jsonl",
                    "b56cefa04ff9a0e64b7bf46355f377cdbd3722acbb646050d2bbd4932ff83d30",
                    202683910,
                ),
            ),
        ),
    ),
    load=load,
    paper="over 500,000 clients of at most 5,000 words; 100,000 test posts of other authors (not public)",
    facts=facts,
)
