"""Tokens with a role: who may come where, tried by real requests on a real service."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_service import operating, plan

from fedavg.cli import cli
from fedavg.fleets.http.server.store import Store, StoreError
from fedavg.fleets.http.server.store.roles import RoleRow, Roles
from fleet_peers import EVERYONE, HOST, until

SECURITY = Path(__file__).parents[3] / "docs" / "security.md"
#: A request to each of the operator's endpoints that does no harm, and what it is answered by who may ask it.
REQUESTS = {
    ("GET", "/admin/status"): (None, 200),
    ("GET", "/admin/ledger"): (None, 200),
    ("GET", "/admin/metrics"): (None, 200),
    ("GET", "/admin/runs"): (None, 200),
    ("POST", "/admin/runs"): ({"plan": "rounds = 0", "name": "", "init": None}, 409),
    ("PUT", "/admin/runs/{run}/model"): ({}, 404),
    ("POST", "/admin/runs/{run}/pause"): (None, 404),
    ("POST", "/admin/runs/{run}/go-on"): (None, 404),
    ("POST", "/admin/runs/{run}/cancel"): (None, 404),
    ("POST", "/admin/runs/{run}/extend"): ({"rounds": 5, "lr": None, "from_round": None}, 404),
    ("POST", "/admin/runs/{run}/rollback"): ({"to_round": 1}, 404),
    ("GET", "/admin/runs/{run}/ledger"): (None, 404),
    ("GET", "/admin/clients"): (None, 200),
    ("POST", "/admin/clients/revoke"): (EVERYONE | {"client": 9}, 200),
    ("POST", "/admin/clients/approve"): (EVERYONE | {"client": 9}, 200),
    ("GET", "/admin/tokens"): (None, 200),
    ("POST", "/admin/tokens"): ({"uses": 1, "label": "", "client": None, "hours": 1.0}, 200),
    ("POST", "/admin/tokens/{id}/withdraw"): (None, 403),
    ("GET", "/admin/roles"): (None, 200),
    ("POST", "/admin/roles"): ({"role": "viewer", "label": "operator", "hours": None}, 400),
    ("POST", "/admin/roles/{id}/withdraw"): (None, 403),
    ("POST", "/admin/stop"): (None, 200),
}


def documented():
    """The table of docs/security.md: which roles may ask what."""
    rows = re.findall(r"^\| `([A-Z]+) (/admin/[^`]*)` \| (yes|no) \| (yes|no|its own runs) \| (yes) \|$",
                      SECURITY.read_text(), re.MULTILINE)  # fmt: skip
    roles = ("viewer", "submitter", "operator")
    return {(method, path): {role for role, may in zip(roles, allowed, strict=True) if may != "no"}
            for method, path, *allowed in rows}  # fmt: skip


def ask(service, token, method, path, message=None):
    body = None if message is None else json.dumps(message).encode()
    return service.ask(method, path, body, {"Authorization": f"Bearer {token}"})


def new_role(service, role, label, hours=None):
    answer = service.admin("POST", "/admin/roles", {"role": role, "label": label, "hours": hours})
    assert answer.status == 200, answer
    return answer.json["token"]


def declared():
    """All endpoints of those who operate a server, as the source declares them."""
    source = Path(__file__).parents[3] / "src" / "fedavg" / "fleets" / "http" / "server"
    text = "".join((source / name).read_text() for name in ("admin.py", "office.py", "roles.py"))
    return set(re.findall(r'Endpoint\("([A-Z]+)", "(/admin/[^"]*)"', text))


def test_each_endpoint_takes_the_roles_of_the_table_and_no_others(tmp_path):
    table = documented()
    assert table.keys() == declared()
    assert table.keys() == REQUESTS.keys()
    with operating(tmp_path) as service:
        tokens = {role: new_role(service, role, f"{role}'s") for role in ("viewer", "submitter", "operator")}
        for (method, path), (message, status) in REQUESTS.items():
            target = path.replace("{run}", "7").replace("{id}", "0" * 16)
            for token in ("", "x" * 43, service.join_token):
                assert ask(service, token, method, target, message).error == "admin-token", (method, path)
            for role in sorted(tokens, key=list(tokens).index):
                answer = ask(service, tokens[role], method, target, message)
                if role in table[method, path]:
                    assert answer.status == status, (role, method, path, answer)
                else:
                    assert (answer.status, answer.error) == (403, "wrong-role"), (role, method, path)


def test_a_submitter_changes_its_own_runs_and_is_named_in_the_record(tmp_path):
    with operating(tmp_path) as service:
        lab, others = new_role(service, "submitter", "the lab"), new_role(service, "submitter", "others")
        order = {"plan": plan(rounds=3).to_toml(), "name": "", "init": None}
        assert ask(service, lab, "POST", "/admin/runs", order).json == {"run": 1}
        until(lambda: service.state(1) == "running")
        for verb, message in (("pause", None), ("extend", {"rounds": 9, "lr": None, "from_round": None})):
            refused = ask(service, others, "POST", f"/admin/runs/1/{verb}", message)
            assert (refused.status, refused.error) == (403, "wrong-role")
        assert ask(service, lab, "POST", "/admin/runs/1/pause").status == 200
        until(lambda: service.state(1) == "paused")
        assert service.change(1, "cancel").status == 200  # an operator may change any
        assert service.runs()[0]["by"] == "the lab"


def test_a_token_is_void_once_it_is_withdrawn_or_over_and_outlives_a_restart(tmp_path):
    with operating(tmp_path) as service:
        kept, gone = new_role(service, "viewer", "kept"), new_role(service, "operator", "gone")
        short = new_role(service, "viewer", "short", hours=1e-6)
        assert service.admin("POST", "/admin/roles", {"role": "viewer", "label": "kept", "hours": None}).status == 400
        listed = {row["label"]: row for row in service.admin("GET", "/admin/roles").json["roles"]}
        assert {label: row["role"] for label, row in listed.items()} == {
            "kept": "viewer", "gone": "operator", "short": "viewer",
        }  # fmt: skip
        assert all(secret not in json.dumps(listed) for secret in (kept, gone, short))
        assert ask(service, gone, "GET", "/admin/tokens").status == 200
        assert ask(service, short, "GET", "/admin/status").error == "admin-token"
        assert service.admin("POST", f"/admin/roles/{listed['gone']['id']}/withdraw").status == 200
        assert ask(service, gone, "GET", "/admin/tokens").error == "admin-token"
    with operating(tmp_path) as service:
        assert ask(service, kept, "GET", "/admin/status").status == 200
        assert ask(service, gone, "GET", "/admin/status").error == "admin-token"
    for name in ("fleet.db", "fleet.db-wal"):
        content = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else b""
        assert kept.encode() not in content


def test_the_command_makes_lists_and_withdraws_tokens_with_a_role(tmp_path):
    with operating(tmp_path) as service:
        url, own = f"http://{HOST}:{service.port}", tmp_path / "admin-token"

        def fedavg(*arguments, token_file=own):
            return CliRunner().invoke(cli, [*arguments, "--admin-token-file", str(token_file)])

        (tmp_path / "viewer").write_text(fedavg("token", url, "--role", "viewer", "--label", "grafana").stdout)
        assert fedavg("status", url, token_file=tmp_path / "viewer").exit_code == 0
        refused = fedavg("clients", url, token_file=tmp_path / "viewer")
        assert "the token of 'grafana' is a viewer's; this needs one of: operator" in str(refused.exception)
        row = re.search(r"^([0-9a-f]{16})  viewer .* grafana$", fedavg("token", url, "--list").stdout, re.MULTILINE)
        assert row
        assert "is withdrawn\n" in fedavg("token", url, "--withdraw", row[1]).stdout
        assert "admin-token" in str(fedavg("status", url, token_file=tmp_path / "viewer").exception)
        assert "expected --label" in str(fedavg("token", url, "--role", "viewer").exception)


def test_labels_are_names(tmp_path):
    with Store.open(tmp_path / "run.db") as store:
        roles = Roles(store.connections)
        row = RoleRow(b"a" * 32, "viewer", "grafana", 1, None)
        roles.add(row)
        for label in ("grafana", "operator"):
            with pytest.raises(StoreError, match="is taken"):
                roles.add(RoleRow(b"b" * 32, "operator", label, 1, None))
        assert roles.all() == [row]
        roles.remove(row.hash)
        assert roles.all() == []
