"""The generated pages of the site show every option, command, error and public name, and their examples can be read."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import fedavg
from fedavg import errors
from fedavg.cli import cli
from fedavg.plan import Plan, option_names

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import reference

PAGES = reference.pages()


def test_every_option_has_a_heading_and_its_help_text():
    headings = re.findall(r"^### (.*)$", PAGES["reference/options.md"], re.MULTILINE)
    assert sorted(headings) == sorted(option_names())


def test_every_example_of_an_option_is_read_by_the_plan():
    for spec in fields(Plan):
        example = reference.example_of(spec)
        assert example is None or getattr(Plan(**{spec.name: example}), spec.name) is not None


def test_the_registered_parts_are_shown_with_their_settings():
    page = PAGES["reference/options.md"]
    for text in ("`fedprox:[mu=0.01]`", "`stc:FRACTION`", "`trimmed:F`", "`diurnal:"):
        assert text.partition(":")[0] in page


def test_every_command_and_sub_command_is_shown_once():
    found = re.findall(r"^#{3,4} fedavg (.*)$", PAGES["reference/commands.md"], re.MULTILINE)
    assert len(found) == len(set(found))
    assert {name.split()[0] for name in found} == set(cli.commands)
    assert "data get" in found
    assert found.count("export-model") == 1


def test_every_error_is_shown():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FedAvgError)]
    assert all(f"| `{kind.__name__}` |" in PAGES["reference/errors.md"] for kind in kinds)


def test_every_public_name_is_on_one_page_of_the_api():
    shown = [name for text in PAGES.values() for name in re.findall(r"^::: fedavg\.(\w+)$", text, re.MULTILINE)]
    assert sorted(shown) == sorted([*fedavg.__all__, "testing"])


def test_a_page_of_the_api_begins_with_what_readers_look_for():
    shown = re.findall(r"^::: fedavg\.(\w+)$", PAGES["reference/api/plans-and-runs.md"], re.MULTILINE)
    assert shown[:6] == ["Plan", "run", "resume", "train", "Result", "Constant"]
    assert set(reference.LEADING) <= set(fedavg.__all__)


def test_a_task_is_described_by_what_it_builds():
    assert "| `mnist-2nn` | 784-200-200-10 with ReLU: 199,210 parameters. |" in PAGES["reference/options.md"]
