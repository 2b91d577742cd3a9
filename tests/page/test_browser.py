"""The page in a real Chromium: what it shows, how it is used, and that it asks nobody but its own server."""

import re

import pytest

from page.browsing import PATIENCE_MS, check_accessible, opened, served
from page.runs import age, begin, finished, named, private, row, world

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
expect.set_options(timeout=PATIENCE_MS)
pytest.importorskip("axe_playwright_python", reason="axe is not installed")

HOSTILE = "<script>document.title='owned'<"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        finished(root / f"slow-{seed}", rounds=20, seed=seed, lr=0.05)
    finished(root / "fast", rounds=20, lr=0.3, E=5)
    finished(root / HOSTILE, rounds=5, lr=0.2)
    named(root / "named")
    private(root / "private")
    world(root / "world")
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
        expect(tab.locator("path.curve")).to_have_count(10)  # a run each, and the mean over three seeds


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
        expect(tab.locator("path.curve")).to_have_count(8)
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


VIEWS = ["#/runs", "#/runs?log=1&x=simulated&y=train_loss&lines=1", "#/round", "#/clients", "#/world"]


#: Each width and each scheme once, and the other two of the four with the slow tests.
SCREENS = [
    (360, "dark"),
    (1280, "light"),
    pytest.param(360, "light", marks=pytest.mark.slow),
    pytest.param(1280, "dark", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_view_keeps_the_rules_of_accessibility(browser, address, width, scheme):
    with opened(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme) as tab:
        for view in VIEWS:
            before = tab.locator("main").get_attribute("data-ready")
            tab.evaluate("view => { location.hash = view }", view)
            expect(tab.locator("main")).not_to_have_attribute("data-ready", before)
            check_accessible(tab)


def test_a_round_is_shown_with_who_took_part(browser, address):
    with opened(browser, address) as tab:
        tab.get_by_role("link", name="Round", exact=True).click()
        tab.get_by_role("combobox", name="run").select_option(label="named")
        expect(tab.get_by_role("heading", name="Round 4")).to_be_visible()
        tab.get_by_role("button", name="Earlier").click()
        expect(tab.get_by_role("heading", name="Round 3")).to_be_visible()
        expect(tab.locator("circle.f0, circle.f1")).to_have_count(2)
        tab.get_by_text("Client by client").click()
        expect(tab.get_by_role("row", name="7 late")).to_be_visible()
        tab.get_by_label("Round number").fill("2")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("heading", name="Round 2")).to_be_visible()
        tab.get_by_role("group", name=re.compile("norm and cosine")).focus()
        tab.keyboard.press("ArrowRight")
        expect(tab.locator(".tip")).to_contain_text("client 3")
        tab.go_back()
        expect(tab.get_by_role("heading", name="Round 3")).to_be_visible()


def test_a_private_round_shows_the_budget_and_nobody(browser, address):
    with opened(browser, address) as tab:
        tab.get_by_role("link", name="Round", exact=True).click()
        tab.get_by_role("combobox", name="run").select_option(label="private")
        expect(tab.get_by_text("epsilon 2 of 8 is spent")).to_be_visible()
        expect(tab.get_by_text("no single update is seen")).to_be_visible()
        expect(tab.get_by_text("Client by client")).to_have_count(0)


def test_clients_are_shown_with_their_data_and_their_share(browser, address):
    with opened(browser, address) as tab:
        tab.get_by_role("link", name="Clients", exact=True).click()
        tab.get_by_role("combobox", name="run").select_option(label="named")
        expect(tab.get_by_role("img", name="Labels of each client")).to_be_visible()  # embedded MNIST
        expect(tab.get_by_role("heading", name="Who fares worst after round 4")).to_be_visible()
        expect(tab.get_by_role("img", name="Rounds that each client reported in")).to_be_visible()
        tab.get_by_role("combobox", name="run").select_option(label="private")
        expect(tab.get_by_text("the plan keeps single clients from view")).to_have_count(2)


def test_a_day_of_a_world_is_shown(browser, address):
    with opened(browser, address) as tab:
        tab.get_by_role("link", name="World", exact=True).click()
        expect(tab.get_by_text("world, day 1 of 2")).to_be_visible()
        expect(tab.get_by_role("img", name="Timeline: 4 rounds over 24 hours")).to_be_visible()
        tab.get_by_role("combobox", name="day").select_option(label="2")
        expect(tab.get_by_role("img", name="Timeline: 2 rounds over 24 hours")).to_be_visible()


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
