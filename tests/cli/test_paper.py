"""`fedavg paper`, as a user meets it: real processes."""

import json
from functools import partial

import programs

fedavg = partial(programs.fedavg, "paper")


def test_help_names_the_commands():
    result = fedavg("--help")
    assert result.returncode == 0
    for name in ("status", "render", *(f"table{n}" for n in range(1, 5)), *(f"figure{n}" for n in range(1, 11))):
        assert f"  {name} " in result.stdout
    for option in ("--only", "--budget", "--seeds", "--show", "--jobs", "--json"):
        assert option in fedavg("table1", "--help").stdout


def test_status_of_nothing(tmp_path):
    result = fedavg("status", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == ["cells"]
    assert len(report["cells"]) == 97
    assert {cell["status"] for cell in report["cells"]} == {"not run"}
    for cell in report["cells"]:
        assert {"table", "model", "partition", "C", "E", "B", "status", "paper", "ours", "eta"} <= cell.keys()
        assert cell["estimated_s"] > 0
    assert list(tmp_path.iterdir()) == [], "to look changes nothing"
    assert "0 measured, 0 running, 97 not run of 97 cells" in fedavg("status", cwd=tmp_path).stdout


def test_show_runs_nothing(tmp_path):
    result = fedavg("table4", "--show", "--json", "--only", "partition=iid", cwd=tmp_path)
    assert [cell["paper"] for cell in json.loads(result.stdout)["cells"]] == [1468, 156, 144, 92, 92, 45, 39, 34, 32]
    assert list(tmp_path.iterdir()) == []
    assert "not run / 1468" in fedavg("table4", "--show", "--markdown", cwd=tmp_path).stdout


def test_a_mistake_is_one_clear_message_and_exit_code_2(tmp_path):
    for words, message in (
        (["table1", "--only", "colour=red"], "error: --only: got 'colour=red'"),
        (["table1", "--budget", "soon", "--only", "model=2nn"], "error: --budget: got 'soon'; expected a time"),
    ):
        result = fedavg(*words, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr


def test_a_budget_on_the_real_2nn_then_status_and_render(tmp_path):
    cell = "partition=iid,E=1,B=10"
    result = fedavg("table4", "--only", cell, "--budget", "15s", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "table4 partition=iid,E=1,B=10" in result.stderr
    (shown,) = json.loads(result.stdout)["cells"]
    assert shown["command"] == f"fedavg paper table4 --only {cell}"
    rendered = fedavg("render", cwd=tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    text = (tmp_path / "docs/results/tables.md").read_text()
    assert text.count("\n## Table") == 4
    assert f"table4 --only {cell}" in text
    assert "figure 5 has no records of" in rendered.stderr
