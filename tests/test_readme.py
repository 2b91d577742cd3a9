"""What the README shows works as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from toys import blobs

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (x, y), (x_test, y_test) = blobs(60, seed=1), blobs(30, seed=2)
    names = {"x": x, "y": y, "x_test": x_test, "y_test": y_test, "parts": np.split(np.arange(60), 6)}
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(example, names)
    assert names["result"].accuracy[-1] > 0.8
    assert (tmp_path / "runs/mine/summary.json").exists()


COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("fedavg ")
]


def test_the_readme_shows_the_main_commands():
    assert {command.split()[1] for command in COMMANDS} == {
        "run", "resume", "data", "paper", "privacy", "personalise", "fleet-demo", "bench",
    }  # fmt: skip


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] in ("run", "data", "privacy")])
def test_the_commands(command, tmp_path):
    (tmp_path / "plan.toml").write_text('task = "mnist-2nn"\nC = 0.02\n')
    words = shlex.split(command)[1:] + (["--set", "rounds=2", "--quiet"] if " run " in command else [])
    program = "from fedavg.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
