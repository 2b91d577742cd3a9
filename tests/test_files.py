import pytest

from fedavg.errors import DiskError
from fedavg.files import write_atomically


def test_a_failed_write_leaves_the_old_file(tmp_path):
    """/dev/full is a disk that is always full."""
    path = tmp_path / "f"
    write_atomically(path, b"old")
    (tmp_path / "f.partial").symlink_to("/dev/full")
    with pytest.raises(DiskError, match="cannot write .*f: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
