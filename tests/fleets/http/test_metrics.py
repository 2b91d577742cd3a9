"""What operators watch: the numbers of a real server, and that dashboard and alerts ask for numbers that there are."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from test_service import operating, train
from test_service import plan as service_plan

from fedavg.cli import cli
from fedavg.fleets.http.server.rounds import Rules
from fleet_peers import HOST, NUMBERS, fleet_plan, serving, until

DEPLOY = Path(__file__).parents[3] / "deploy"


def all_metrics(server):
    lines = server.admin("GET", "/admin/metrics").body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_rounds_cohorts_reasons_and_the_model_are_there(tmp_path):
    with serving(tmp_path, fleet_plan(rounds=3), rules=Rules(deadline_s=1.5, quorum=0.3), minimum=3) as server:
        (good, bad, mute), offers = server.cohort(10, 10, 10)
        good.upload(offers[0], good.frame(offers[0], np.ones(NUMBERS), 10.0))
        bad.upload(offers[1], b"nothing")
        until(lambda: server.status()["committed"] == 1)
        found = until(lambda: (m := server.metrics())["fedavg_rounds_total"] == 1 and m)
        assert found["fedavg_committed_round"] == 1
        assert found["fedavg_round_cohort"] == 1
        assert 1.0 < found["fedavg_round_last_seconds"] <= found["fedavg_round_seconds_total"] + 1e-9
        assert found['fedavg_clients_missing_total{reason="refused: truncated"}'] == 1
        assert found['fedavg_clients_missing_total{reason="late"}'] == 1
        assert found['fedavg_updates_refused_total{reason="truncated"}'] == 1
        assert found["fedavg_clients_resting"] == 2
        assert 0 <= found['fedavg_model_metric{metric="accuracy",on="test"}'] <= 1
        assert found["fedavg_uploads_waiting"] == 0
        assert not [name for name in found if 'on="training"' in name]  # what clients measured is not for strangers
        assert all_metrics(server)['fedavg_model_metric{metric="loss",on="training"}'] == 0.5
        options = ["status", f"http://{HOST}:{server.port}"]
        plain = CliRunner().invoke(cli, options).stdout
        more = CliRunner().invoke(cli, [*options, "--admin-token-file", str(tmp_path / "admin-token")]).stdout
        assert "last round" not in plain
        assert re.search(r"last round +1 clients, \d+\.\d s, training loss 0\.5, .*accuracy", more)
        assert re.search(r"clients missing +.*1 late", more)
        assert re.search(r"shut out +0 revoked, 2 resting", more)
        for peer in (good, bad, mute):
            peer.close()


def test_the_queue_of_a_service_is_counted_by_state(tmp_path):
    with operating(tmp_path) as service:
        peer = service.peer(10)
        for seed in (1, 2, 3):
            service.submit(service_plan(seed=seed))
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        found = until(lambda: (m := service.metrics()).get('fedavg_runs{state="running"}') == 1 and m)
        assert found['fedavg_runs{state="queued"}'] == 1
        assert found['fedavg_runs{state="done"}'] == 1
        peer.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The names of all numbers that there are."""
    with serving(tmp_path_factory.mktemp("metrics"), minimum=1) as server:
        return set(re.findall(r"^# TYPE (\w+) ", server.ask("GET", "/metrics").body.decode(), re.MULTILINE))


def test_the_dashboard_asks_for_numbers_that_there_are(exported):
    dashboard = json.loads((DEPLOY / "grafana" / "fedavg.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"fedavg_\w+", expression)}
    assert asked == exported  # and for all of them
    for expression in expressions:
        assert expression.count("(") == expression.count(")"), expression
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie on each other"
    assert max(x for x, _ in cells) < 24


def test_alerts_and_the_scrape_ask_for_what_there_is(exported):
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    rules = alerts["groups"][0]["rules"]
    for rule in rules:
        assert set(re.findall(r"fedavg_\w+", rule["expr"])) <= exported, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action"}
        assert set(re.findall(r"fedavg_\w+", json.dumps(rule["annotations"]))) <= exported
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scrape["rule_files"] == ["alerts.yml"]
    (job,) = scrape["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("fedavg", "/admin/metrics")
    assert all('job="fedavg"' in rule["expr"] or "by (job)" in rule["expr"] for rule in rules)
