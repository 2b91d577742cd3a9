import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedavg.data import load
from fedavg.data.download import complete
from fedavg.data.posts import BEGIN, PADDING, POSTS, UNKNOWN, WORDS, PostsData, parse_jsonl
from fedavg.data.posts_store import PostsStore, Writing, open_or_prepare, prepare, words_of
from fedavg.data.sequences import IGNORE
from fedavg.errors import DataError, PlanError

AUTHORS = 20


def corpus() -> list[Writing]:
    """Two months each of twenty authors: three common words, and one that only this author uses."""
    return [
        Writing(f"author{n}", [f"to be or word{n} to be to", f"month {month} to", "!!"])
        for n in range(AUTHORS)
        for month in ("one", "two")
    ]


def store(tmp_path: Path, writings: list[Writing] | None = None) -> PostsStore:
    prepare(tmp_path / "store", corpus() if writings is None else writings)
    return PostsStore(tmp_path / "store")


def spelling(tmp_path: Path) -> list[str]:
    return (tmp_path / "store" / "words.txt").read_text().split("\n")


def test_words_of_a_post() -> None:
    assert words_of("Don’t #Vote, @RepX &amp; 5G!") == ["don't", "#vote", "@repx", "5g"]
    assert words_of("!!") == []


def test_a_store_gives_back_what_was_written(tmp_path: Path) -> None:
    made = store(tmp_path)
    words, lengths = made.read(0, 2)
    assert lengths.tolist() == [7, 3]
    assert " ".join(spelling(tmp_path)[word] for word in words) == "to be or word0 to be to month one to"
    # The post without words is gone.
    assert np.diff(made.client_posts).tolist() == [2] * 2 * AUTHORS
    assert made.authors == AUTHORS


def test_counting_is_by_client(tmp_path: Path) -> None:
    made = store(tmp_path)
    only_first = np.arange(2 * AUTHORS) == 0
    counts = made.count_words(only_first)
    assert {spelling(tmp_path)[word]: counts[word] for word in np.flatnonzero(counts)} == {
        "to": 4, "be": 2, "or": 1, "word0": 1, "month": 1, "one": 1
    }  # fmt: skip


def test_a_client_is_cut_at_5000_words(tmp_path: Path) -> None:
    made = store(tmp_path, [Writing("a", ["x " * 3000, "y " * 3000, "z"]), Writing("b", ["z"])])
    assert made.post_words.tolist() == [3000, 2000, 1]
    assert made.client_posts.tolist() == [0, 2, 3]


def test_posts_become_windows_of_ten(tmp_path: Path) -> None:
    data = PostsData(store(tmp_path), seed=0)
    first = data.client(0)
    assert data.sizes[0] == len(first) == 2
    assert first.x.shape == (2, 10)
    assert first.x[0, 0] == BEGIN
    assert first.x[0, 1:7].tolist() == first.y[0, :6].tolist()
    assert first.x[0, 7:].tolist() == [PADDING] * 3
    assert first.y[0, 7:].tolist() == [IGNORE] * 3
    # "to" is the commonest word: it has the first id.
    assert first.y[0, 0] == first.y[0, 4] == WORDS


def test_test_authors_are_no_clients_and_do_not_make_the_vocabulary(tmp_path: Path) -> None:
    data = PostsData(store(tmp_path), seed=3)
    assert len(data) == 2 * 18
    # Words of all training authors are known, each test author's own word is not: one of the ten in each first post.
    trained = np.concatenate([data.client(k).y.numpy().ravel() for k in range(len(data))])
    assert UNKNOWN not in trained
    tested = data.test.y.numpy().ravel()
    assert (tested == UNKNOWN).sum() == 4
    assert len(data.test) == 8
    assert PostsData(store(tmp_path / "again"), seed=4).fingerprint != data.fingerprint


def test_a_small_vocabulary_makes_words_unknown(tmp_path: Path) -> None:
    data = PostsData(store(tmp_path), seed=0, vocabulary=WORDS + 2)
    seen = np.unique(np.concatenate([data.client(k).y.numpy().ravel() for k in range(len(data))]))
    assert seen.tolist() == [IGNORE, UNKNOWN, WORDS, WORDS + 1]


def test_some_of_the_clients(tmp_path: Path) -> None:
    made = store(tmp_path)
    assert len(PostsData(made, seed=0, clients=5)) == 5
    with pytest.raises(PlanError, match="clients = 37, and the data has 36"):
        PostsData(made, seed=0, clients=37)
    with pytest.raises(DataError, match="no client 36"):
        PostsData(made, seed=0).client(36)


def test_forks_read_on_their_own(tmp_path: Path) -> None:
    data = PostsData(store(tmp_path), seed=0)
    expected = [data.client(k).y.numpy().tobytes() for k in range(len(data))]
    child = os.fork()
    if child == 0:
        same = all(data.client(k).y.numpy().tobytes() == expected[k] for k in reversed(range(len(data))))
        os._exit(0 if same else 1)
    assert [data.client(k).y.numpy().tobytes() for k in range(len(data))] == expected
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_damaged_store_is_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def writings() -> list[Writing]:
        made.append(1)
        return corpus()

    first = open_or_prepare(tmp_path / "store", writings).digest
    assert open_or_prepare(tmp_path / "store", writings).digest == first
    assert len(made) == 1
    words = tmp_path / "store" / "words.u16"
    words.write_bytes(words.read_bytes()[:-2])
    assert open_or_prepare(tmp_path / "store", writings).digest == first
    assert len(made) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_lines_are_parsed_or_named() -> None:
    good = json.dumps({"author": "1", "month": "2018-08", "posts": ["hello"]})
    assert list(parse_jsonl([good])) == [Writing("1", ["hello"])]
    for bad in ("{", '{"author": "1"}', "[]"):
        with pytest.raises(DataError, match="line 2 of the posts is not a client"):
            list(parse_jsonl([good, bad]))


def test_no_words_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no words in the posts"):
        store(tmp_path, [Writing("a", ["!"])])


def test_without_the_file_the_message_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"posts/congress.jsonl.xz  \(SHA-256 1e669a.*\n  or .*congress.jsonl "):
        load("posts", data_dir=tmp_path)


@pytest.mark.slow
def test_the_real_posts(real_data: Path, tmp_path: Path) -> None:
    if not complete(POSTS, real_data):
        pytest.skip(f"the posts are not in {real_data}")
    (tmp_path / "posts").mkdir()
    for form in POSTS.files[0].forms:
        if (real_data / form.path).is_file():
            (tmp_path / form.path).symlink_to(real_data / form.path)
    data = load("posts", data_dir=tmp_path)
    assert 55_000 < len(data) < 65_000
    assert 300_000 < POSTS.facts(data)["test_words"] < 400_000
    assert POSTS.facts(data)["unknown_words"] / POSTS.facts(data)["test_words"] < 0.1
    assert int(data.test.y.max()) == 9_999
