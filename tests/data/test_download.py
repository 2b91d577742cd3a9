"""Downloads from a real server on this machine that can break off, refuse ranges and serve rubbish."""

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedavg.data.dataset import Dataset, RemoteFile, Request, StoredFile
from fedavg.data.download import obtain_all
from fedavg.errors import DataError
from fedavg.types import FederatedData
from toys import put

CONTENT = bytes(range(256)) * 4000


@dataclass
class Server:
    """What the server does with a path, and which ranges it was asked for."""

    address: str = ""
    content: dict[str, bytes] = field(default_factory=dict)
    break_after: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range") if state.ranges else None
            state.asked.append(self.headers.get("Range"))
            whole = state.content.get(self.path)
            if whole is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
            if start >= len(whole):
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(whole) - start))
            self.end_headers()
            stop = state.break_after.pop(self.path, len(whole))
            self.wfile.write(whole[start : start + stop])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    state.address = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def never(_: Request) -> FederatedData:
    raise AssertionError("these tests load nothing")


def dataset(*urls: str, content: bytes = CONTENT) -> Dataset:
    form = StoredFile("toy/file.bin", hashlib.sha256(content).hexdigest(), len(content))
    return Dataset("toy", "a file", "none", 1, ("iid",), (RemoteFile((form,), urls),), never)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "toy").iterdir())


def test_a_missing_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    server.content["/file.bin"] = CONTENT
    wanted = dataset(f"{server.address}/file.bin")
    (first,) = obtain_all(wanted, tmp_path)
    (again,) = obtain_all(wanted, tmp_path)
    assert first.path.read_bytes() == CONTENT
    assert (first.fetched, again.fetched) == (True, False)
    assert server.asked == [None]
    assert leftovers(tmp_path) == ["file.bin"]


def test_a_broken_download_is_taken_up_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.content["/file.bin"] = CONTENT
    server.break_after["/file.bin"] = 1000
    (file,) = obtain_all(dataset(f"{server.address}/file.bin"), tmp_path)
    assert file.path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-"]


def test_a_partial_file_of_an_earlier_run_is_taken_up(server: Server, tmp_path: Path) -> None:
    server.content["/file.bin"] = CONTENT
    put(tmp_path / "toy" / "file.bin.partial", CONTENT[:5000])
    obtain_all(dataset(f"{server.address}/file.bin"), tmp_path)
    assert server.asked == ["bytes=5000-"]
    assert leftovers(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("old", [b"of another version", CONTENT, CONTENT + b"too long"])
def test_a_wrong_partial_file_does_no_harm(server: Server, tmp_path: Path, old: bytes, ranges: bool) -> None:
    server.content["/file.bin"] = CONTENT
    server.ranges = ranges
    put(tmp_path / "toy" / "file.bin.partial", old)
    (file,) = obtain_all(dataset(f"{server.address}/file.bin"), tmp_path)
    assert file.path.read_bytes() == CONTENT
    assert leftovers(tmp_path) == ["file.bin"]


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    server.content |= {"/rubbish": b"<html>sorry</html>", "/good": CONTENT}
    urls = [f"{server.address}/{path}" for path in ("absent", "rubbish", "good")]
    (file,) = obtain_all(dataset(*urls), tmp_path)
    assert file.path.read_bytes() == CONTENT


def test_a_damaged_file_is_named_removed_and_fetched_again(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.content["/file.bin"] = CONTENT
    path = tmp_path / "toy" / "file.bin"
    put(path, CONTENT[:-1])
    (file,) = obtain_all(dataset(f"{server.address}/file.bin"), tmp_path)
    assert file.fetched
    assert path.read_bytes() == CONTENT
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{path} is damaged or another version" in said.err
    assert f"removed {path}" in said.err


def test_without_network_the_message_says_where_to_put_what(tmp_path: Path) -> None:
    wanted = dataset("http://127.0.0.1:9/file.bin")
    message = re.escape(str(tmp_path / "toy" / "file.bin")) + rf"  \(SHA-256 {wanted.files[0].forms[0].sha256}\)"
    with pytest.raises(DataError, match=message) as raised:
        obtain_all(wanted, tmp_path)
    assert "127.0.0.1:9/file.bin: " in str(raised.value)
    assert "1.0 MB" in str(raised.value)
    assert "--data-dir or FEDAVG_DATA" in str(raised.value)


def test_a_file_that_no_server_has_is_asked_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="It cannot be downloaded"):
        obtain_all(dataset(), tmp_path)


def test_rubbish_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.content["/file.bin"] = b"rubbish"
    with pytest.raises(DataError, match=r"SHA-256 is .* \(7 bytes\), expected"):
        obtain_all(dataset(f"{server.address}/file.bin"), tmp_path)
    assert leftovers(tmp_path) == []


def test_other_forms_and_editions_will_do(server: Server, tmp_path: Path) -> None:
    plain = StoredFile("toy/plain", hashlib.sha256(b"plain").hexdigest(), 5)
    packed = StoredFile("toy/packed", hashlib.sha256(b"packed").hexdigest(), 6)
    other = StoredFile("toy/other", hashlib.sha256(b"other").hexdigest(), 5)
    server.content["/other"] = b"OTHER"
    editions = (RemoteFile((packed, plain)), RemoteFile((other,), (f"{server.address}/other",), bytes.lower))
    toy = Dataset("toy", "", "", 1, ("iid",), editions, never, one_is_enough=True)
    # The first cannot be downloaded, so the second edition is, and converted.
    (fetched,) = obtain_all(toy, tmp_path)
    assert fetched.path.read_bytes() == b"other"
    assert leftovers(tmp_path) == ["other"]
    # Another form of the better edition comes first as soon as it is there.
    put(tmp_path / "toy" / "plain", b"plain")
    assert [file.path.name for file in obtain_all(toy, tmp_path)] == ["plain"]


def test_only_http_is_spoken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not an http\(s\) address"):
        obtain_all(dataset("file:///etc/hostname"), tmp_path)
