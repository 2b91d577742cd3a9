import pytest
from starlette.testclient import TestClient

from fedavg.page.answers import Shown
from fedavg.page.app import make_app
from fedavg.page.library import Library
from page.runs import finished

TOKEN = "secret-token"


@pytest.fixture
def client(tmp_path):
    finished(tmp_path / "runs" / "a", rounds=3)
    finished(tmp_path / "runs" / "b", rounds=3, seed=1, lr=0.2, B="inf")
    library = Library(tmp_path / "runs")
    library.read_all()
    return TestClient(make_app(Shown(library), TOKEN), base_url="http://127.0.0.1:8000")


def ask(client, path):
    return client.get(f"/{TOKEN}/api/{path}")


def test_the_index_lists_runs_and_what_differs(client):
    answer = ask(client, "index").json()
    assert [run["name"] for run in answer["runs"]] == ["a", "b"]
    assert answer["options"] == ["B", "lr", "seed"]
    assert answer["runs"][1]["plan"]["B"] == "inf"  # JSON has no infinity
    assert "test.accuracy" in answer["columns"]


def test_curves_of_chosen_runs(client):
    id = ask(client, "index").json()["runs"][1]["id"]
    answer = ask(client, f"curves?x=bytes&y=test.accuracy&run={id}&run=000000000000").json()
    assert [curve["run"] for curve in answer["curves"]] == [id]
    assert answer["curves"][0]["x"] == [3e6, 6e6, 9e6]


def test_a_round(client):
    id = ask(client, "index").json()["runs"][0]["id"]
    answer = ask(client, f"run/{id}/round/2").json()
    assert answer["row"]["train_loss"] == 1.0
    assert ask(client, f"run/{id}/round/4").status_code == 404


@pytest.mark.parametrize("path", ["", "nothing", "run/x", "curves?x=nothing", "run/x/round/1"])
def test_what_is_not_there_is_a_404_with_words(client, path):
    answer = ask(client, path)
    assert answer.status_code == 404
    assert answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/index.html", f"/{TOKEN}", f"/{TOKEN[:-1]}x/", "/x/api/index", "//"])
def test_without_the_token_nothing_is_shown(client, path):
    assert client.get(path).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "10.0.0.1:8000"])
def test_another_name_for_this_machine_is_refused(client, host):
    """A website that rebinds its name to 127.0.0.1 still sends its own name."""
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]:8000"])
def test_the_names_of_this_machine_are_served(client, host):
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client, method):
    assert client.request(method, f"/{TOKEN}/api/index").status_code == 405


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "page.py", "nothing.js", "%2e%2e/record.py", "main"])
def test_only_the_files_of_the_page_are_served(client, name):
    assert client.get(f"/{TOKEN}/static/{name}").status_code == 404


def test_every_answer_has_the_headers_that_keep_others_out(client):
    for path in (f"/{TOKEN}/", f"/{TOKEN}/static/main.js", f"/{TOKEN}/api/index", f"/{TOKEN}/api/nothing", "/"):
        headers = client.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
