"""Where the real data is, for the tests that need it. Everything else is made on the spot."""

import os
from pathlib import Path

import pytest
import torch

from fedavg.data.federated import ArrayData
from fedavg.types import Examples


@pytest.fixture
def empty_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with nothing in it, so that no file of this machine plays a part."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FEDAVG_DATA", str(folder))
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real data sets: FEDAVG_DATA, else ../shared/data beside the repository."""
    named = os.environ.get("FEDAVG_DATA")
    folder = Path(named) if named else Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there. Set FEDAVG_DATA to a folder with the data sets")
    return folder


@pytest.fixture
def tiny() -> ArrayData:
    """Seven examples of labels 0, 1, 2 over three clients, the last of them empty."""
    x = torch.arange(14, dtype=torch.uint8).view(7, 2)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    parts = [torch.tensor(rows, dtype=torch.int64).numpy() for rows in ([6, 1, 3], [0, 2, 4, 5], [])]
    return ArrayData("tiny", x, y, parts, Examples(x[:2], y[:2]))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network: every request goes to a port of this machine that nobody listens on."""
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
