"""A live fleet on the page: a real server, devices that are led by hand."""

import pytest
from harness import Hand, serving
from postgres import start_postgres
from several import ENDLESS, Replicas, full_plan
from tiny import tiny_plan

from fedavg.page.fleet import LiveFleet, Moment, moment, pace
from page.browsing import PATIENCE_MS, check_accessible, opened, served


def test_devices_at_work_are_those_that_have_not_answered():
    current = {"phase": "collecting", "invited": 9, "accepted": 2, "failed": 3}
    status = {"committed": 4, "present": 12, "round": current}
    assert moment(status, 7.0) == Moment(7.0, 4, 12, 4)
    assert moment(status | {"round": current | {"phase": "done"}}, 7.0).at_work == 0
    assert moment(status | {"round": None}, 7.0).at_work == 0


def test_the_pace_is_known_once_a_round_has_ended():
    assert pace([]) is None
    assert pace([Moment(0, 1, 0, 0), Moment(9, 1, 0, 0)]) is None
    assert pace([Moment(0, 1, 0, 0), Moment(360, 2, 0, 0)]) == 10


def test_a_server_that_is_not_there_is_a_problem_in_words():
    fleet = LiveFleet("http://127.0.0.1:9", None, None)
    fleet.ask()
    assert "does not answer" in fleet.answer()["problem"]
    assert fleet.answer()["moments"] == []
    fleet.stop()


def test_a_live_fleet_is_shown_to_its_operator(tmp_path, browser):
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=PATIENCE_MS)
    plan = tiny_plan(rounds=2, C=1.0)
    with serving(tmp_path, plan, "--min-clients", "2", "--deadline", "600") as server:
        hands = [Hand(server, k) for k in range(2)]
        for hand in hands:
            hand.poll(0)
        offers = [hand.offered() for hand in hands]
        hands[0].upload(offers[0])
        token = server.directory / "admin-token"
        with (
            served(server.url, server.directory, "--admin-token-file", token) as address,
            opened(browser, address, "#/fleet") as tab,
        ):
            expect(tab.get_by_role("heading", name="Round 1: collecting")).to_be_visible()
            expect(tab.get_by_text("1 of 2 wanted updates are in the sum")).to_be_visible()
            expect(tab.get_by_role("heading", name="Devices", exact=True)).to_be_visible()
            check_accessible(tab)
            hands[1].upload(offers[1])
            expect(tab.get_by_role("heading", name="Round 2: collecting")).to_be_visible()
            tab.set_viewport_size({"width": 360, "height": 800})
            check_accessible(tab)
            tab.get_by_role("link", name="Runs").click()
            expect(tab.locator("tbody tr").first).to_contain_text("1 / 2")
            assert token.read_text() not in tab.content()


def test_without_the_operators_token_numbers_alone_are_shown(tmp_path, browser):
    expect = pytest.importorskip("playwright.sync_api").expect
    with serving(tmp_path, tiny_plan(rounds=1), "--min-clients", "4") as server:
        Hand(server, 0).poll(0)
        with served(server.url) as address, opened(browser, address) as tab:
            expect(tab.get_by_role("heading", name="Fleet")).to_be_visible()
            expect(tab.get_by_text("seen by its operator")).to_have_count(0)
            expect(tab.get_by_text("--admin-token-file")).to_be_visible()
            expect(tab.get_by_role("link", name="Runs")).to_have_count(0)


@pytest.mark.slow  # its cheap sibling asks as the page does, without a browser: test_any_replica_tells_of_all_of_them
def test_replicas_are_shown_by_whichever_of_them_is_asked(tmp_path, browser):
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=PATIENCE_MS)
    database = start_postgres("fsync = off")
    plan = full_plan(rounds=ENDLESS, C=0.25)
    with Replicas(tmp_path, plan, 2, database.get_uri(), "--min-clients", "2", clients=0) as fleet:
        fleet.enrol(2)
        hands, offers = fleet.offers(*fleet.replicas)
        hands[0].upload(offers[0])
        token = tmp_path / "token"
        token.write_text(fleet.admin_token)
        for replica in fleet.replicas:
            with (
                served(replica.url, "--admin-token-file", token) as address,
                opened(browser, address, "#/fleet") as tab,
            ):
                rows = tab.get_by_role("table", name="Replicas").locator("tbody tr")
                expect(rows).to_have_count(2)
                expect(rows.filter(has_text="leads")).to_have_count(1)
                for each in fleet.replicas:
                    expect(rows.filter(has_text=each.url)).to_have_count(1)
                check_accessible(tab)
                tab.screenshot(path=tmp_path / "replicas.png", full_page=True)
                tab.set_viewport_size({"width": 360, "height": 800})
                check_accessible(tab)
    database.cleanup()
