"""Words by author in a file, as numbers: written once, then read a client at a time. Knows nothing of learning.

A store is a folder: `words.u16`, all words end to end as uint16; `posts.npz`, where posts and clients start;
`words.txt`, the word of each number; `meta.json`. Words beyond the 65,535 most frequent share the last number: no
vocabulary that a model is given reaches that far.
"""

import html
import json
import os
import re
import shutil
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, final

import numpy as np

from fedavg.errors import DataError

#: Changes with the meaning of the files, so that a store of an older release is made again.
_VERSION: Final = 1
_RARE: Final = 0xFFFF
_WORD_BYTES: Final = 2
#: At most this many words of a client are kept (§3).
WORDS_PER_CLIENT: Final = 5000
#: Words, hashtags and names; "don't" is one word.
_WORD: Final = re.compile(r"[#@]?\w+(?:'\w+)*")
#: Words read at a time when the whole file is counted.
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Writing:
    """What one client wrote."""

    author: str
    posts: list[str]


def words_of(post: str) -> list[str]:
    """The words of a post, in lower case."""
    return _WORD.findall(html.unescape(post).replace("’", "'").lower())


@final
class PostsStore:
    """An open store. `post_words` (P,) are words per post, `client_posts` (K + 1,) where each client's posts start,
    `client_author` (K,) the number of its author."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "posts.npz", allow_pickle=False) as arrays:
            self.post_words: np.ndarray = arrays["post_words"]
            self.client_posts: np.ndarray = arrays["client_posts"]
            self.client_author: np.ndarray = arrays["client_author"]
        meta = json.loads((folder / "meta.json").read_text())
        self.digest: str = meta["digest"]
        self.authors: int = meta["authors"]
        self.distinct: int = meta["distinct"]
        self._starts = np.concatenate([[0], np.cumsum(self.post_words, dtype=np.int64)])
        self._folder = folder
        # Read by position, never by a shared offset: forked processes can use the same open file.
        self._file = os.open(folder / "words.u16", os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._file)

    def __reduce__(self) -> tuple[type["PostsStore"], tuple[Path]]:
        """Another process opens the files itself: the number of an open file means something else there."""
        return PostsStore, (self._folder,)

    def read(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The words of posts `first` to `last` (exclusive) end to end, and how many each post has."""
        return self._read_words(int(self._starts[first]), int(self._starts[last])), self.post_words[first:last]

    def count_words(self, clients: np.ndarray) -> np.ndarray:
        """How often each word occurs with the clients that are True in `clients` (K,); shape (65536,)."""
        counts = np.zeros(_RARE + 1, np.int64)
        kept = np.repeat(np.repeat(clients, np.diff(self.client_posts)), self.post_words)
        for start in range(0, len(kept), _CHUNK):
            part = kept[start : start + _CHUNK]
            counts += np.bincount(self._read_words(start, start + len(part))[part], minlength=_RARE + 1)
        counts[_RARE] = 0
        return counts

    def _read_words(self, start: int, stop: int) -> np.ndarray:
        raw = _read_at(self._file, (stop - start) * _WORD_BYTES, start * _WORD_BYTES)
        if len(raw) != (stop - start) * _WORD_BYTES:
            raise DataError("the prepared posts were cut short while in use. Delete the folder and start again.")
        return np.frombuffer(raw, "<u2")


def _read_at(file: int, size: int, place: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(file, size, place)
    os.lseek(file, place, os.SEEK_SET)  # without fork nobody else has this open file
    return os.read(file, size)


def open_or_prepare(folder: Path, writings: Callable[[], Iterable[Writing]]) -> PostsStore:
    """The store in `folder`; made first if it is not there, is damaged, or is of another version."""
    if not _sound(folder):
        shutil.rmtree(folder, ignore_errors=True)
        prepare(folder, writings())
    return PostsStore(folder)


def _sound(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        return bool(
            meta["version"] == _VERSION
            and (folder / "words.u16").stat().st_size == meta["words"] * _WORD_BYTES
            and (folder / "posts.npz").stat().st_size == meta["posts_bytes"]
        )
    except (OSError, ValueError, KeyError):
        return False


def prepare(folder: Path, writings: Iterable[Writing]) -> None:
    """Writes a store; the folder appears under its name only when it is whole."""
    print(f"preparing the posts, once, in {folder}", file=sys.stderr)
    numbers: dict[str, int] = {}
    authors: dict[str, int] = {}
    words, post_words, client_posts, client_author = array("I"), array("I"), array("q", [0]), array("q")
    for writing in writings:
        left = WORDS_PER_CLIENT
        for post in writing.posts:
            found = words_of(post)[:left]
            if found:
                words.extend([numbers.setdefault(word, len(numbers)) for word in found])
                post_words.append(len(found))
                left -= len(found)
        client_posts.append(len(post_words))
        client_author.append(authors.setdefault(writing.author, len(authors)))
    if not words:
        raise DataError("there are no words in the posts: expected at least one post with words. Is it the right file?")
    arrays: dict[str, np.ndarray] = {
        "post_words": np.array(post_words, np.uint16),
        "client_posts": np.array(client_posts, np.int64),
        "client_author": np.array(client_author, np.int32),
    }
    _write(folder, np.frombuffer(words, np.uint32), list(numbers), arrays, len(authors))


def _write(folder: Path, words: np.ndarray, spelling: list[str], arrays: dict[str, np.ndarray], authors: int) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    order = np.argsort(-np.bincount(words), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    stored = np.minimum(rank, _RARE).astype("<u2")[words]
    stored.tofile(partial / "words.u16")
    np.savez(
        partial / "posts.npz",
        post_words=arrays["post_words"],
        client_posts=arrays["client_posts"],
        client_author=arrays["client_author"],
    )
    (partial / "words.txt").write_text("\n".join(spelling[number] for number in order[:_RARE]), encoding="utf-8")
    digest = blake2b(stored.data, digest_size=16)
    for values in arrays.values():
        digest.update(values.data)
    meta = {
        "version": _VERSION,
        "words": len(words),
        "distinct": len(spelling),
        "authors": authors,
        "posts_bytes": (partial / "posts.npz").stat().st_size,
        "digest": digest.hexdigest(),
    }
    (partial / "meta.json").write_text(json.dumps(meta, indent=1))
    try:
        partial.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(partial)
        if not _sound(folder):
            raise
