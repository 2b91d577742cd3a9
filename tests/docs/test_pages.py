"""Every block of code and every command of the docs works as it stands there (`blocks.py` says how each is tried)."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from blocks import ROOT, Block, blocks, execute, read

PAGES = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if "results" not in path.parts
    and path.stem != "training"  # tests/test_training_doc.py tries it, and what comes out
    and any(block.language != "text" for block in blocks(path))
]
SLOW = [path for path in PAGES if any(block.marker.startswith("slow:") for block in blocks(path))]


def try_page(path: Path, *, slow: bool = False) -> None:
    names: dict[str, object] = {"__name__": f"page_{path.stem.replace('-', '_')}"}
    for block in blocks(path):
        execute(block, names, slow=slow)


def ident(path: Path) -> str:
    return path.relative_to(ROOT / "docs").as_posix()


@pytest.mark.parametrize("path", PAGES, ids=ident)
# What other packages warn of when they are imported is not ours to fix.
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_the_blocks_of_a_page(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try_page(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", SLOW, ids=ident)
def test_also_the_long_blocks_of_a_page(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try_page(path, slow=True)


def test_the_commands_of_the_readme(tmp_path, monkeypatch):
    """Its Python is tried by tests/test_readme.py."""
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text('task = "mnist-2nn"\nC = 0.02\n')
    for block in blocks(ROOT / "README.md"):
        if block.language == "sh":
            execute(block, {})


def test_the_commands_of_contributing_exist():
    for block in blocks(ROOT / "CONTRIBUTING.md"):
        read(block)


def test_a_command_that_is_not_run_needs_a_reason():
    with pytest.raises(AssertionError, match="nothing says why"):
        execute(Block("page", 1, "sh", "fedavg doctor", "", ""), {})


@pytest.mark.parametrize(
    "text",
    ["fedavg rum mnist-2nn", "fedavg run mnist-2nn --lrr 1", "python benchmarks/none.py", "pip install 'fedavg[x]'"],
)
def test_a_command_that_is_not_there_is_found(text):
    with pytest.raises(AssertionError, match="page:1"):
        read(Block("page", 1, "sh", text, "", ""))
