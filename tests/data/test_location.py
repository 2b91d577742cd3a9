import sys
from pathlib import Path

import pytest

from fedavg.data.location import cache_directory, data_directory


def test_the_option_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDAVG_DATA", str(tmp_path / "named"))
    assert data_directory(tmp_path / "asked") == tmp_path / "asked"
    assert data_directory(None) == tmp_path / "named"


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", ".cache/fedavg"), ("darwin", "Library/Caches/fedavg"), ("win32", "AppData/Local/fedavg")],
)
def test_the_platform_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, expected: str) -> None:
    for name in ("FEDAVG_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert data_directory(None) == tmp_path / expected


def test_the_variables_of_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDAVG_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert data_directory(None) == tmp_path / "xdg" / "fedavg"


def test_what_is_made_from_data_goes_beside_it_if_it_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    folder = tmp_path / "data"
    assert cache_directory(folder / "not" / "yet") == folder / "not" / "yet"
    folder.mkdir()
    assert cache_directory(folder) == folder
    folder.chmod(0o555)
    assert cache_directory(folder) == tmp_path / "xdg" / "fedavg"
    folder.chmod(0o755)
