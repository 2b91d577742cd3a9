import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.data import load
from fedavg.data.dataset import Request
from fedavg.data.download import present
from fedavg.data.partition import parse_partition
from fedavg.data.sequences import IGNORE
from fedavg.data.shakespeare import BEGIN, PADDING, SHAKESPEARE, facts, from_roles, read_text, split_lines, text_of_zip
from fedavg.errors import DataError, PlanError

#: Three roles of a play, and one with too few lines.
ROLES = {
    ("play", "A"): ["to be", "or not", "to be,", "that is", "the question"],
    ("play", "B"): ["x" * 100, "é", "end"],
    ("play", "C"): ["one", "two"],
    ("play", "D"): [f"line {n}" for n in range(10)],
}


def request(spec: str, clients: int | None = None) -> Request:
    return Request(parse_partition(spec), clients, 0, Path())


def spelled(y: torch.Tensor) -> bytes:
    return bytes(y[y != IGNORE].tolist())


def test_a_line_is_an_example() -> None:
    data = from_roles(ROLES, request("natural"))
    client = data.client(0)
    assert client.x.shape == (4, 80)
    assert client.x[0, :8].tolist() == [BEGIN, *b"to be", PADDING, PADDING]
    assert client.y[0, :8].tolist() == [*b"to be\n", IGNORE, IGNORE]


def test_roles_are_clients_and_their_last_lines_the_test() -> None:
    data = from_roles(ROLES, request("natural"))
    # A: 4 + 1 lines; B: 2 + 1, of which one takes two examples; C is too short; D: 8 + 2.
    assert data.sizes.tolist() == [4, 3, 8]
    assert spelled(data.client(1).y) == b"x" * 100 + b"\n" + "é".encode() + b"\n"
    assert data.client(1).x[1, 0] == ord("x")
    assert spelled(data.test.y) == b"the question\nend\nline 8\nline 9\n"


def test_every_character_is_counted_once() -> None:
    data = from_roles(ROLES, request("natural"))
    kept = [split_lines(lines) for lines in ROLES.values() if len(lines) > 2]
    assert facts(data) == {
        "train_characters": sum(len(line.encode()) + 1 for train, _ in kept for line in train),
        "test_characters": sum(len(line.encode()) + 1 for _, test in kept for line in test),
    }


def test_iid_deals_the_same_lines_to_as_many_clients() -> None:
    natural, iid = from_roles(ROLES, request("natural")), from_roles(ROLES, request("iid"))
    assert iid.sizes.tolist() == [5, 5, 5]
    assert facts(iid) == facts(natural)
    assert torch.equal(iid.test.y, natural.test.y)
    rows = [sorted(row for k in range(3) for row in data.client(k).y.tolist()) for data in (natural, iid)]
    assert rows[0] == rows[1]
    assert len(from_roles(ROLES, request("iid", 7))) == 7


def test_some_of_the_roles() -> None:
    data = from_roles(ROLES, request("natural", 2))
    assert len(data) == 2
    assert len(data.test) == 4
    with pytest.raises(PlanError, match="clients = 4, and the data has 3 of its own"):
        from_roles(ROLES, request("natural", 4))


@given(st.integers(2, 200))
def test_the_split_is_80_to_20_with_one_line_at_least(count: int) -> None:
    train, test = split_lines([str(n) for n in range(count)])
    assert train + test == [str(n) for n in range(count)]
    assert len(test) == max(1, count // 5)


def test_texts_come_packed_or_not(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("text.txt", "\ufeffé\r\n")
    contents = {"a.txt": "é\n".encode(), "a.gz": gzip.compress("é\n".encode()), "a.zip": archive.getvalue()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert read_text(tmp_path / name) == "é\n"
    with pytest.raises(DataError, match="not a zip archive of one text"):
        text_of_zip(b"<html>")


@pytest.mark.usefixtures("offline")
def test_without_the_text_the_message_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shakespeare/shaks12.txt  \(SHA-256 c5601d"):
        load("shakespeare", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("edition", "clients", "train", "test"),
    [(0, 1144, 3_564_184, 869_916), (1, 1215, 3_644_260, 881_991)],
    ids=["1994", "2018"],
)
def test_the_real_text(real_data: Path, tmp_path: Path, edition: int, clients: int, train: int, test: int) -> None:
    file = SHAKESPEARE.files[edition]
    if not present(file, real_data):
        pytest.skip(f"{file.forms[0].path} is not in {real_data}")
    form = next(form for form in file.forms if (real_data / form.path).is_file())
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / form.path).symlink_to(real_data / form.path)
    data = load("shakespeare", data_dir=tmp_path)
    assert len(data) == clients
    assert facts(data) == {"train_characters": train, "test_characters": test}
    balanced = load("shakespeare", "iid", data_dir=tmp_path)
    assert len(balanced) == clients
    assert np.ptp(balanced.sizes) <= 1


def test_the_1994_text_is_within_a_thousandth_of_the_paper(real_data: Path) -> None:
    if not present(SHAKESPEARE.files[0], real_data):
        pytest.skip(f"the 1994 edition is not in {real_data}")
    data = load("shakespeare", data_dir=real_data)
    assert len(data) == pytest.approx(1146, rel=2e-3)
    assert facts(data)["train_characters"] == pytest.approx(3_564_579, rel=2e-4)
    assert facts(data)["test_characters"] == pytest.approx(870_014, rel=2e-4)
    # Table 2: u = E n / (K B) is 7.4 for E=1, B=10 and 37.1 for E=5, B=10.
    assert data.sizes.mean() / 10 == pytest.approx(7.4, abs=0.05)
    assert 5 * data.sizes.mean() / 10 == pytest.approx(37.1, abs=0.15)
