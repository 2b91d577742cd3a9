"""Completion, help in groups, manual pages."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.cli.completion import WORDS
from fedavg.cli.groups import EXIT_CODES, GROUPS
from fedavg.data import DATASETS
from fedavg.fleets import FLEETS
from fedavg.plan import Plan, part_options

SCRIPTS = Path(sys.executable).parent


def completed(line, folder="."):
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    environment = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    environment |= {"_FEDAVG_COMPLETE": "bash_complete", "HOME": "/tmp"}
    command = [sys.executable, "-c", "from fedavg.cli import main; import sys; sys.argv[0] = 'fedavg'; main()"]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    return [line.partition(",")[2] for line in ended.stdout.splitlines()]


def test_the_words_of_each_option_are_those_of_its_registry():
    for name, parser in part_options().items():
        assert WORDS[name] == tuple(parser.base().registry()), name
    assert WORDS["data"] == tuple(DATASETS)
    assert WORDS["fleet"] == tuple(FLEETS)


@pytest.mark.parametrize("name", sorted(set(WORDS) - set(part_options()) - {"data", "fleet"}))
def test_the_words_of_an_option_are_taken_by_the_plan(name):
    for word in WORDS[name]:
        if (name, word) not in {("secagg", "complete"), ("secagg", "sparse")}:  # these want settings after a colon
            Plan(**{name: word})


def test_commands_presets_parts_and_run_directories_are_completed(tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/run.json").write_text("{}")
    (tmp_path / "runs/b").mkdir()
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert completed("fedavg resu") == ["resume"]
    assert completed("fedavg run mnist-") == ["mnist-2nn", "mnist-cnn"]
    assert completed("fedavg run m", tmp_path) == ["mnist-2nn", "mnist-cnn", "mine.toml"]
    assert completed("fedavg run mnist-2nn --algorithm fedp") == ["fedprox"]
    assert completed("fedavg run mnist-2nn --stages clip,we") == ["clip,weigh"]
    assert completed("fedavg resume runs/", tmp_path) == ["runs/a", "runs/b/"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell, tmp_path):
    shown = CliRunner().invoke(cli, ["completion", shell], catch_exceptions=False)
    assert "_FEDAVG_COMPLETE" in shown.output
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed, so its script was not read by it")
    (tmp_path / "script").write_text(shown.output)
    subprocess.run([program, "-n", str(tmp_path / "script")], check=True)


def test_every_command_stands_in_one_group():
    names = [name for group in GROUPS.values() for name in group]
    assert len(set(names)) == len(names)
    assert set(cli.commands) <= set(names)
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert "Others:" not in shown
    assert all(f"  {name} " in shown for name in cli.commands)
    assert all(f"\n  {code} " in shown for code, _ in EXIT_CODES)


def test_manual_pages_have_every_command_and_option(tmp_path):
    CliRunner().invoke(cli, ["man", str(tmp_path)], catch_exceptions=False)
    pages = {path.stem: path.read_text() for path in (tmp_path / "man1").glob("*.1")}
    assert {f"fedavg-{name}" for name in cli.commands} <= pages.keys()
    assert r"\-\-eval\-every" in pages["fedavg-run"]
    assert "fedavg-paper-table4" in pages
    assert "\n.B fedavg export\\-model\n" in pages["fedavg-export-model"]
    for name, command in cli.commands.items():
        options = [flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")]
        visible = [flag for flag in options if not isinstance(command, click.Group)]
        assert all(flag.replace("-", r"\-") in pages[f"fedavg-{name}"] for flag in visible), name


def test_man_reads_the_pages(tmp_path):
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    CliRunner().invoke(cli, ["man", str(tmp_path)], catch_exceptions=False)
    for path in (tmp_path / "man1").glob("*.1"):
        command = ["groff", "-man", "-Tutf8", "-wall", str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ended.stderr == "", path.name
