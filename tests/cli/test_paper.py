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


def test_outside_a_clone_the_records_of_the_package_are_shown(tmp_path):
    cells = json.loads(fedavg("status", "--json", cwd=tmp_path).stdout)["cells"]
    chosen = {"table": 4, "partition": "iid", "E": 1, "B": 10}
    (cell,) = (cell for cell in cells if chosen.items() <= cell.items())
    assert (cell["status"], cell["paper"], round(cell["ours"], 1)) == ("measured", 92, 85.4)
    drawn = json.loads(fedavg("figure1", "--show", "--json", "--out", tmp_path / "out", cwd=tmp_path).stdout)
    assert len(drawn["files"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_status_of_nothing(tmp_path):
    result = fedavg("status", "--json", "--records", "none", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == ["cells"]
    assert len(report["cells"]) == 97
    assert {cell["status"] for cell in report["cells"]} == {"not run"}
    for cell in report["cells"]:
        assert {"table", "model", "partition", "C", "E", "B", "status", "paper", "ours", "eta"} <= cell.keys()
        assert cell["estimated_s"] > 0
    assert list(tmp_path.iterdir()) == [], "to look changes nothing"
    assert "0 measured, 0 running, 97 not run of 97 cells" in fedavg("status", "--records", "none", cwd=tmp_path).stdout


def test_show_runs_nothing(tmp_path):
    result = fedavg("table4", "--show", "--json", "--only", "partition=iid", "--records", "none", cwd=tmp_path)
    assert [cell["paper"] for cell in json.loads(result.stdout)["cells"]] == [1468, 156, 144, 92, 92, 45, 39, 34, 32]
    assert list(tmp_path.iterdir()) == []
    assert "not run / 1468" in fedavg("table4", "--show", "--markdown", "--records", "none", cwd=tmp_path).stdout


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
    result = fedavg("table4", "--only", cell, "--budget", "15s", "--json", "--records", "own", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "table4 partition=iid,E=1,B=10" in result.stderr
    (shown,) = json.loads(result.stdout)["cells"]
    assert shown["command"] == f"fedavg paper table4 --only {cell}"
    rendered = fedavg("render", "--records", "own", cwd=tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    text = (tmp_path / "docs/results/tables.md").read_text()
    assert text.count("\n## Table") == 4
    assert f"table4 --only {cell}" in text
    assert "figure 5 has no records of" in rendered.stderr
