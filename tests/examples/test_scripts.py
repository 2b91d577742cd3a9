"""Every script of examples/ runs on tiny data, in this process, and prints what it promises."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
#: What each script prints on tiny data, and what it needs beside the package.
PRINTED = {
    "own_model.py": r"round 2: accuracy 0\.\d+\na new case is of class [012]",
    "tabular_regression.py": r"round 2: rmse \d.* kW, mae \d.* kW\nrmse of a household",
    "batch_norm.py": r"(?s)shards:2 group norm .*refused: 'digits' cannot be trained on a batch of one",
    "text_lengths.py": r"6 reviewers, 180 reviews of 3 to \d+ words\nround 1: accuracy",
    "non_iid.py": r"partition +fedavg +fedprox:0\.1\nshards:2 +0\.\d+ +0\.\d+",
    "personalisation.py": r"shared  model: accuracy 0\.\d+.*\nown     model: accuracy 0\.\d+.*\nbetter off \d+%",
    "lora.py": r"(?s)6 authors train on 60 posts.*round 2: accuracy.*a round sent 0\.05 MB up; the whole model",
    "private.py": r"(?s)epsilon \d+\.\d+\n\(\d+\.\d+, 0\.001\)-differentially private, by client",
    "attack.py": r"nobody lies +accuracy 0\.\d+\na fifth lies, mean +acc.*\na fifth lies, trimmed mean +acc",
    "day.py": r"(?s)round 2 at +\d+\.\d h: \d+ there, \d+ asked, \d+ reported.*reports by time zone",
    "from_flower.py": r"round 1: loss \d+\.\d+, accuracy 0\.\d+, 0\.\d+ on clients",
}
NEEDS = {"lora.py": "peft", "tabular_regression.py": "pandas", "private.py": "cryptography"}


def run(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [name, "--tiny"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PRINTED)
# What other packages warn of when they are imported is not ours to mend.
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_the_script_runs_and_prints_what_it_promises(name, capsys, monkeypatch):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    printed = run(name, capsys, monkeypatch)
    assert re.search(PRINTED[name], printed), printed


def test_the_program_of_a_device_takes_part_in_a_run(capsys, monkeypatch):
    """Its server is a process."""
    printed = run("device_program.py", capsys, monkeypatch)
    assert "took part in round 1\ntook part in round 2\nmodel of round 2: reads " in printed
    assert printed.endswith("the run is over after round 2\n")


@pytest.mark.slow  # a Ray of its own takes fifteen seconds to start
def test_the_script_runs_on_ray(capsys, monkeypatch):
    pytest.importorskip("ray")
    assert run("on_ray.py", capsys, monkeypatch).endswith("the same model\n")


def test_each_script_says_how_to_run_it_and_is_in_the_index():
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert {*PRINTED, "on_ray.py", "device_program.py"} == set(scripts)
    for name in scripts:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert f"python examples/{name}" in text.partition('"""')[2].partition('"""')[0]
        assert f"]({name})" in index
    assert set(re.findall(r"\]\((\w+\.py)\)", index)) == set(scripts)
