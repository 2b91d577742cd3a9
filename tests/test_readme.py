"""What the README shows works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)  # the second example draws its data
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    for _ in range(2):  # whoever tries it twice meets the run of the first time
        for example in examples:
            exec(example, names)
    assert names["result"].accuracy[-1] > 0.8
    assert (tmp_path / "runs/mine/summary.json").exists()


COMMANDS = [
    line.split("#")[0].strip()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    if not language
    for line in block.splitlines()
    if line.startswith("fedavg ")
]


def test_the_readme_shows_the_main_commands():
    assert {command.split()[1] for command in COMMANDS} == {
        "run", "resume", "sweep", "page", "data", "privacy", "export-model", "paper", "serve", "join",
        "fleet-demo",
    }  # fmt: skip


def test_a_number_of_the_paper_is_the_one_on_record():
    """Rows such as '| 2NN, IID, C=0.1, ... | 87 | 85.4 |' against docs/results/tables.md."""
    tables = (Path(__file__).parents[1] / "docs/results/tables.md").read_text()
    rows = re.findall(
        r"^\| (2NN|CNN), (IID|non-IID), C=([\d.]+), B=(\d+),.*?\| (\d+) \| ([\d.]+) \|$", README, re.MULTILINE
    )
    assert len(rows) == 5
    measured = re.findall(r"^\| [\w=.,-]*=[\w=.,-]+ \| [^|]+ \| [\d.]+", tables, re.MULTILINE)
    assert f"{len(measured)} of its 97 cells" in README
    for model, partition, C, B, paper, ours in rows:
        cell = f"model={model.lower()},partition={partition.lower()},C={C},B={B}"
        (found,) = re.findall(rf"^\| {re.escape(cell)} \| (\d+) \| ([\d.]+)", tables, re.MULTILINE)
        assert found == (paper, ours)


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_the_figures_of_speed_are_those_on_record(page):
    text = (Path(__file__).parents[1] / page).read_text()
    speed = (Path(__file__).parents[1] / "docs/results/speed.md").read_text()
    rows = re.findall(r"^\| (W\d): .*?\| ([\d.]+) x \| ([\d.]+) x \| ([\d.]+) x \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for name, *peers in rows:
        (row,) = re.findall(rf"^\| {name} \| \d.*\(.*$", speed, re.MULTILINE)
        assert re.findall(r"\(([\d.]+)\)", row) == peers


def test_every_link_leads_somewhere():
    root = Path(__file__).parents[1]
    assert not [link for link in re.findall(r"\]\(([^)#]+)", README) if not (root / link).exists()]
