import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedavg.cli import cli
from fedavg.errors import FedAvgError
from fedavg.page import export as module
from fedavg.page.export import export
from fedavg.page.site import bundled
from page.browsing import check_accessible, opened
from page.runs import finished, named, world

HOSTILE = "</script><script>document.title='owned'"


def test_one_file_holds_all_and_asks_for_nothing(tmp_path, browser):
    expect = pytest.importorskip("playwright.sync_api").expect
    finished(tmp_path / "runs" / HOSTILE.replace("/", "∕"), rounds=5)
    named(tmp_path / "runs" / "named")
    world(tmp_path / "runs" / "world")
    file = tmp_path / "report.html"
    assert export(tmp_path / "runs", file) == 3
    with opened(browser, file.as_uri()) as tab:
        expect(tab.locator("#link")).to_have_text("exported file")
        expect(tab.locator("path.curve")).to_have_count(3)
        assert tab.title() == "Runs – fedavg"
        tab.get_by_role("combobox", name="x", exact=True).select_option("bytes")
        expect(tab.get_by_role("group", name=re.compile("by bytes sent"))).to_be_visible()
        check_accessible(tab)
        tab.get_by_role("link", name="Round", exact=True).click()
        tab.get_by_role("combobox", name="run").select_option(label="named")
        tab.get_by_role("button", name="Earlier").click()
        expect(tab.get_by_role("heading", name="Round 3")).to_be_visible()
        tab.get_by_role("link", name="Clients", exact=True).click()
        expect(tab.get_by_role("img", name="Labels of each client")).to_be_visible()
        tab.get_by_role("link", name="World", exact=True).click()
        expect(tab.get_by_role("img", name=re.compile("Timeline"))).to_be_visible()


def test_of_a_long_run_some_rounds_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROUNDS", 3)
    finished(tmp_path / "run", rounds=9)
    export(tmp_path / "run", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    answers = json.loads(re.search(r'id="answers">(.*?)</script>', text).group(1))
    (id,) = answers["index"]["kept"]
    assert answers["index"]["kept"][id] == [1, 5, 9]
    assert {path.rpartition("/")[2] for path in answers if "/round/" in path} == {"1", "5", "9"}
    assert str(tmp_path) not in text  # where it lay on this machine is nobody's business


def test_modules_share_no_name_when_they_become_one():
    names = re.findall(r"^(?:async )?(?:function|class) (\w+)|^(?:const|let) (\w+)", bundled("main"), re.MULTILINE)
    several = re.findall(r"^(?:const|let) \w+ = [^;{]*, (\w+) = ", bundled("main"), re.MULTILINE)
    found = [a or b for a, b in names] + several
    assert len(found) == len(set(found)), sorted(name for name in found if found.count(name) > 1)
    assert "import " not in bundled("main").replace("important ", "")


def test_the_command_writes_the_file_and_says_how_large_it_is(tmp_path):
    finished(tmp_path / "run")
    result = CliRunner().invoke(cli, ["page", str(tmp_path / "run"), "--export", str(tmp_path / "a.html")])
    assert result.output.startswith("1 run in ")
    assert (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nothing"], "expected a folder of runs"),
        (["a", "b"], "one of each"),
        (["http://127.0.0.1:1", "http://127.0.0.1:2"], "one of each"),
        (["http://example.org"], "expected https"),
        (["{}", "--ca", "{}/file"], "expected its address"),
        (["http://127.0.0.1:1", "--export", "{}/a.html"], "--export writes runs"),
        (["{}", "--export", "{}/a.html"], "there is no run"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, arguments, message):
    (tmp_path / "file").touch()
    given = [text.format(tmp_path) for text in arguments]
    result = CliRunner().invoke(cli, ["page", *given])
    assert isinstance(result.exception, FedAvgError)
    assert message in str(result.exception)
