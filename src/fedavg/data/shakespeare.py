"""Shakespeare (§3): a client for each speaking role of each play; predict the next character.

An example is one line of a role, as in the paper (its u = E n / (K B) of Table 2 gives n = 85,000 examples: the number
of training lines). x, y: (N, 80) int64, characters as bytes. x starts with BEGIN, y ends with the newline; the rest of
the row is PADDING in x and IGNORE in y. The few lines with more than 80 bytes continue in the next example.
"""

import gzip
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor

from fedavg.data.dataset import Dataset, RemoteFile, Request, StoredFile
from fedavg.data.download import obtain_all
from fedavg.data.federated import ArrayData
from fedavg.data.partition import some_of
from fedavg.data.sequences import IGNORE, pieces_of, windows
from fedavg.data.shakespeare_text import PlayRoles, read_roles
from fedavg.errors import DataError
from fedavg.seeds import NONE, rng
from fedavg.types import Examples, FederatedData

UNROLL: Final = 80
#: Ids 0 to 255 are the bytes; with these two the vocabulary has 258, which gives the paper's number of parameters.
BEGIN: Final = 256
PADDING: Final = 257
VOCABULARY: Final = 258

#: A role needs two lines to train on beside one to be tested on. The paper says "at least two lines"; its 1146 roles
#: are those with more than two in all (docs/datasets.md).
_TRAIN_LINES: Final = 2
#: With fewer plays than this, the text is not the expected one.
_PLAYS: Final = 30


def load(request: Request) -> FederatedData:
    (file,) = obtain_all(SHAKESPEARE, request.data_dir)
    roles = read_roles(read_text(file.path))
    plays = len({play for play, _ in roles})
    if plays < _PLAYS:
        raise DataError(f"{file.path} has {plays} plays in a known layout, expected {_PLAYS} or more. Fetch it again.")
    return from_roles(roles, request)


def from_roles(roles: PlayRoles, request: Request) -> FederatedData:
    """Clients and test set of parsed roles; those with too few lines are left out."""
    halves = [split_lines(lines) for lines in roles.values() if len(lines) > _TRAIN_LINES]
    x, y, sizes = _encode([train for train, _ in halves])
    test_x, test_y, _ = _encode([test for _, test in halves])
    draw = rng(request.seed, NONE, NONE, "partition")
    if request.partition.by_key:
        parts = some_of(np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]), request.clients, draw)
    else:
        parts = request.partition.deal(y[:, 0].numpy(), request.clients or len(halves), draw)
    return ArrayData("shakespeare", x, y, parts, Examples(test_x, test_y))


def split_lines(lines: list[str]) -> tuple[list[str], list[str]]:
    """The first 80 % to train, the last 20 % to test, one line at least (§3)."""
    test = max(1, len(lines) // 5)
    return lines[:-test], lines[-test:]


def _encode(clients: list[list[str]]) -> tuple[Tensor, Tensor, np.ndarray]:
    """x and y, (N, 80), of the lines of all clients in order, and how many examples each client has, (K,)."""
    lines = [line.encode() + b"\n" for client in clients for line in client]
    lengths = np.array([len(line) for line in lines])
    x, y = windows(np.frombuffer(b"".join(lines), np.uint8), lengths, UNROLL, BEGIN, PADDING)
    owner = np.repeat(np.arange(len(clients)), [len(client) for client in clients])
    return x, y, np.bincount(owner, pieces_of(lengths, UNROLL), len(clients)).astype(np.int64)


def read_text(path: Path) -> str:
    """The text of a .txt, .gz or .zip file."""
    content = path.read_bytes()
    if path.suffix == ".zip":
        content = text_of_zip(content)
    elif path.suffix == ".gz":
        content = gzip.decompress(content)
    return content.decode("utf-8-sig")


def text_of_zip(content: bytes) -> bytes:
    """The only file of a zip archive, with the line ends of Unix."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            (name,) = archive.namelist()
            return archive.read(name).replace(b"\r\n", b"\n")
    except (zipfile.BadZipFile, ValueError) as error:
        raise DataError(f"not a zip archive of one text ({error}). Fetch it from another place.") from error


def facts(data: FederatedData) -> Mapping[str, int]:
    """The characters to predict, newlines included, as the paper counts them."""
    train = sum(int((data.client(k).y != IGNORE).sum()) for k in range(len(data)))
    return {"train_characters": train, "test_characters": int((data.test.y != IGNORE).sum()) if data.test else 0}


SHAKESPEARE = Dataset(
    name="shakespeare",
    summary="the plays by speaking role, next character; Gutenberg #100 of 1994 or 2018",
    licence="1994 edition: personal use only, not commercial; 2018 edition: public domain in the USA",
    clients=None,
    partitions=("natural", "iid"),
    files=(
        RemoteFile(
            (
                StoredFile(
                    "shakespeare/shaks12.txt",
                    "c5601d266987ac885ca96522b1b4e439feb7eca39f0fe1111f7342b63b6468f3",
                    5458199,
                ),
                StoredFile(
                    "shakespeare/shaks12.txt.gz",
                    "2277de5933fd43a5c42bc4fe39e16aaea8cd1854277dcd0751910d9292f92f68",
                    2022392,
                ),
            ),
            (
                "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
                "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
            ),
            text_of_zip,
        ),
        RemoteFile(
            (
                StoredFile(
                    "shakespeare/100-0.zip",
                    "2caed7fe4a0d73f8bb5c2ae1724aeacf25671cf1e1bb8241ef8a86edb500fe8f",
                    2166912,
                ),
                StoredFile(
                    "shakespeare/100-0.txt",
                    "17d47ae375676f7576feb3d931784223865403a18537707f9a567247015d6781",
                    5852404,
                ),
            ),
            (
                "https://www.gutenberg.org/files/100/100-0.zip",
                "https://web.archive.org/web/2018id_/https://www.gutenberg.org/files/100/100-0.zip",
            ),
        ),
    ),
    load=load,
    paper="1146 clients; 3,564,579 characters to train, 870,014 to test",
    facts=facts,
    one_is_enough=True,
)
