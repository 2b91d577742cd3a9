import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.data import embedded
from fedavg.data.embedded.make import write_all
from fedavg.errors import DataError


@given(st.binary(max_size=300))
def test_unpack_undoes_pack(content: bytes) -> None:
    raw = np.frombuffer(content, np.uint8)
    back = embedded.unpack(*embedded.pack(raw))
    assert back[: len(raw)].tobytes() == content
    assert not back[len(raw) :].any()


def test_the_copy_is_small_and_has_its_notice() -> None:
    files = [path for path in embedded.HERE.iterdir() if path.suffix in {".xz", ".gz", ".txt"}]
    assert len(files) == 2 * len(embedded.SHA256) + 1
    assert sum(path.stat().st_size for path in files) < 10_000_000
    assert "CC BY-SA 3.0" in (embedded.HERE / "NOTICE.txt").read_text()


def test_a_damaged_copy_is_refused(tmp_path: Path) -> None:
    for path in embedded.HERE.glob("*-ubyte.*"):
        shutil.copy(path, tmp_path)
    labels = tmp_path / "t10k-labels-idx1-ubyte.values.gz"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.values.gz is damaged .* Install the package again"):
        embedded.read_all(tmp_path)
    labels.unlink()
    with pytest.raises(DataError, match="has no copy of MNIST"):
        embedded.read_all(tmp_path)


def test_only_the_official_files_are_packed(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"something else")
    with pytest.raises(DataError, match="expected ba891046"):
        write_all(tmp_path, tmp_path)


READ_AGAIN = """
from pathlib import Path
from fedavg.data.embedded import read_all
from fedavg.engine.memory import keep_freed_memory, trim

def megabytes():
    trim()
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) >> 10

keep_freed_memory()
read_all()
before = megabytes()
for _ in range(8):
    read_all()
print(megabytes() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_a_process_that_reads_it_again_and_again_does_not_grow() -> None:
    done = subprocess.run([sys.executable, "-c", READ_AGAIN], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60
