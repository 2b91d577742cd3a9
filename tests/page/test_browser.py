"""The page in a real Chromium: what it shows, how it is used, and that it asks nobody but its own server."""

import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from page.runs import age, begin, finished, row

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = "<script>document.title='owned'<"
#: A busy machine is slow, not wrong.
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def served(*arguments):
    """`fedavg page` as a user starts it; gives the address that it prints."""
    command = [sys.executable, "-m", "fedavg", "page", *map(str, arguments), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield line.split()[-1]
        finally:
            process.terminate()


@contextmanager
def opened(browser, address, **options):
    """A page that must not log an error, nor ask anything of another place than the one it came from."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    tab = context.new_page()
    faults = []
    tab.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda request: _check_place(request.url, address, faults))
    tab.goto(address)
    tab.wait_for_selector("main[data-ready]")
    try:
        yield tab
        assert faults == []
    finally:
        context.close()


def _check_place(url, address, faults):
    if not url.startswith("data:") and urlsplit(url).netloc != urlsplit(address).netloc:
        faults.append(f"asked {url}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        finished(root / f"slow-{seed}", rounds=20, seed=seed, lr=0.05)
    finished(root / "fast", rounds=20, lr=0.3, E=5)
    finished(root / HOSTILE, rounds=5, lr=0.2)
    torn = begin(root / "torn")
    torn.append(row(1))
    with torn.metrics_path.open("ab") as file:
        file.write(b'{"round"')
    age(torn)
    (root / "foreign").mkdir()
    (root / "foreign" / "run.json").write_text('{"format": 99}')
    return root


@pytest.fixture(scope="module")
def address(runs):
    with served(runs) as address:
        yield address


def run_row(tab, name):
    return tab.locator("tbody tr").filter(has=tab.get_by_role("checkbox", name=name, exact=True))


def test_runs_are_listed_with_their_states(browser, address):
    with opened(browser, address) as tab:
        expect(run_row(tab, "fast")).to_contain_text("finished")
        expect(run_row(tab, "torn")).to_contain_text("was cut off")
        expect(run_row(tab, "foreign")).to_contain_text("format 99")
        assert tab.locator("path.curve").count() == 7  # fast, hostile, torn is a point of one, three seeds and a mean


def test_the_name_of_a_run_is_shown_as_text(browser, address):
    with opened(browser, address) as tab:
        expect(run_row(tab, HOSTILE)).to_be_visible()
        assert tab.title() == "Runs – fedavg"
        assert tab.locator("main script").count() == 0


def test_axes_bands_and_scale_can_be_chosen(browser, address):
    with opened(browser, address) as tab:
        plot = tab.get_by_role("group", name=re.compile("accuracy .* by round"))
        expect(plot).to_be_visible()
        tab.get_by_role("combobox", name="x", exact=True).select_option("bytes")
        tab.get_by_role("combobox", name="y", exact=True).select_option("train_loss")
        expect(tab.get_by_role("group", name=re.compile("training loss by bytes sent"))).to_be_visible()
        assert tab.locator("path.area").count() == 1
        tab.get_by_label("band over seeds").uncheck()
        expect(tab.locator("path.area")).to_have_count(0)
        tab.get_by_label("log scale").check()
        expect(tab.locator("path.curve")).to_have_count(6)
        assert "log=1" in tab.url
        tab.reload()
        expect(tab.get_by_label("log scale")).to_be_checked()


def test_runs_can_be_unchecked_and_filtered(browser, address):
    with opened(browser, address) as tab:
        tab.get_by_role("button", name="Uncheck all").click()
        expect(tab.locator("path.curve")).to_have_count(0)
        tab.get_by_role("checkbox", name="fast").check()
        expect(tab.locator("path.curve")).to_have_count(1)
        tab.get_by_label("Filter runs by name").fill("slow")
        expect(tab.locator("section").nth(1).locator("tbody tr")).to_have_count(3)
        tab.get_by_role("button", name="Check all", exact=True).click()
        expect(tab.locator("path.curve")).to_have_count(5)
        expect(tab.get_by_role("columnheader", name="lr")).to_be_visible()  # fast and slow differ in it


def test_all_of_it_works_by_keyboard(browser, address):
    with opened(browser, address) as tab:
        tab.keyboard.press("Tab")
        expect(tab.get_by_role("link", name="Skip to the content")).to_be_focused()
        plot = tab.get_by_role("group", name=re.compile("Chart"))
        for _ in range(30):
            tab.keyboard.press("Tab")
            if plot.evaluate("element => element === document.activeElement"):
                break
        expect(plot).to_be_focused()
        tab.keyboard.press("ArrowRight")
        expect(tab.locator(".tip")).to_contain_text("round 1")
        tab.keyboard.press("End")
        expect(tab.locator(".tip")).to_contain_text("round 20")
        expect(tab.locator("section p[role=status]")).to_contain_text("fast 0.9524")  # 1 - 1/21, aloud
        tab.keyboard.press("Escape")
        expect(tab.locator(".tip")).to_be_hidden()
        box = tab.get_by_role("checkbox", name="fast")
        box.focus()
        tab.keyboard.press("Space")
        expect(box).not_to_be_checked()
        expect(box).to_be_focused()


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_keeps_the_rules_of_accessibility(browser, address, width, scheme):
    with opened(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme) as tab:
        check_accessible(tab)


def check_accessible(tab):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    found = axe.Axe().run(tab).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"


def test_a_run_that_trains_is_drawn_as_it_grows(browser, tmp_path):
    run = begin(tmp_path / "runs" / "live", rounds=5)
    with run.locked(), served(tmp_path / "runs") as address, opened(browser, address) as tab:
        expect(tab.locator("tbody tr").first).to_contain_text("running")
        for t in (1, 2, 3):
            run.append(row(t))
            expect(tab.locator("tbody tr").first).to_contain_text(f"{t} / 5")
        expect(tab.locator("path.curve")).to_have_attribute("d", re.compile("^M[^L]*L[^L]*L[^L]*$"))  # three points
        finished(tmp_path / "runs" / "new", rounds=4)
        expect(run_row(tab, "new")).to_contain_text("finished")


def test_a_server_that_is_gone_is_told(browser, tmp_path):
    finished(tmp_path / "a")
    context = browser.new_context()
    tab = context.new_page()
    with served(tmp_path) as address:
        tab.goto(address)
        expect(tab.locator("#link")).to_have_text("live", timeout=PATIENCE_MS)
    expect(tab.locator("#link")).to_have_text("no connection", timeout=PATIENCE_MS)
    context.close()
