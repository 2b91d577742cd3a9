"""The week of an operator, on real processes: a service in PostgreSQL with TLS, eight devices, three runs."""

import json
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from harness import wait_until
from lines import LINE as LINE_TASK
from postgres import database
from test_reload import shown
from test_upgrade import RELEASES, as_schemas
from tiny import TASK
from week import (
    LINE,
    NODE,
    TOY,
    DeviceApp,
    Grown,
    JoinedDevice,
    NodeDevice,
    ServiceProcess,
    as_data,
    line_examples,
    toy_examples,
)

from fedavg import Examples, Plan, run
from fedavg.fleets.http.protocol.certs import make_certificates
from fedavg.fleets.http.server.store import Store
from fedavg.fleets.http.server.store.schema import LATEST, found_schema
from programs import fedavg

#: The clients that the last release had, of whom one is revoked, and those who join: six apps, a command, and Node.
OLD, APPS, COMMAND, IN_NODE = (0, 1), (2, 3, 4, 5, 6, 7), 8, 9
SIZES = dict(zip(APPS, (7, 12, 6, 5, 20, 9), strict=True))
PLAN = {"task": TOY, "data": "none", "clients": len(APPS), "C": 1.0, "E": 2, "B": 4, "lr": 0.1}
FIRST = Plan(**PLAN, rounds=3, seed=1)
LINES = Plan(task=LINE, data="none", clients=8, C=1.0, E=2, B="inf", lr=0.1, rounds=3, seed=2)
PRIVATE = Plan(**PLAN, rounds=2, seed=3, secagg="complete:4:20")
LONGER = 20


def simulated(plan, data, task=TASK):
    return run(replace(plan, task=task, data=data, clients=None, workers=1))


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_the_week_of_an_operator(tmp_path, url, postgres):
    toy, line = toy_examples(SIZES), line_examples((*APPS, COMMAND, IN_NODE))
    make_certificates(tmp_path / "c", ["127.0.0.1"])
    service = ServiceProcess(tmp_path, tmp_path / "c")
    apps = [DeviceApp(tmp_path, k, toy[k], line[k]) for k in APPS]
    command, node = JoinedDevice(tmp_path, COMMAND, line[COMMAND]), NodeDevice(tmp_path, line[IN_NODE])

    with ExitStack() as stack:
        # Monday: the service of the last release is upgraded. What waited there is cancelled, and eight devices join.
        as_schemas(RELEASES[-1], tmp_path / "service", url)
        stack.callback(service.kill)
        service.start(tmp_path / "service", url, "--new-admin-token")
        for number in (2, 3):
            service.command("cancel", number)
        token = service.asked("token", "--uses", 8).strip()
        for device in (*apps, command):
            device.start(service, token)
            stack.callback(device.kill)
        wait_until(lambda: len(clients(service)) == len(OLD) + 7, "seven devices to enrol")
        node.start(service, token)  # it takes the number that is free
        stack.callback(node.kill)
        numbers = {name: submit(service, tmp_path, name, plan) for name, plan in
                   (("toy", FIRST), ("line", LINES), ("private", PRIVATE))}  # fmt: skip
        assert numbers == {"toy": 4, "line": 5, "private": 6}
        service.wait_for_state(4, "done")

        # Tuesday: the certificate is renewed while the second run goes on.
        before = shown(service.port, service.ca)
        assert fedavg("certs", tmp_path / "c", "--renew").returncode == 0
        service.reload()
        assert shown(service.port, service.ca) != before
        service.wait_for_state(5, "done")
        wait_until(lambda: (command.folder / "model.safetensors").exists(), "the model of the line")

        # Wednesday: a device is revoked, and ends. The private run goes on without it.
        service.asked("revoke", "--client", COMMAND)
        assert command.ended() == 2
        assert "revoked" in (command.folder / "log").read_text()
        service.wait_for_state(6, "done")
        wait_until(lambda: all(len(app.models()) == 3 for app in apps), "three models on each device")

        # Thursday: data grows, and the first run goes on with a smaller rate. It is copied in the middle of a round.
        grown = toy | {3: Examples(*(torch.cat([getattr(toy[k], name) for k in (3, 2)]) for name in "xy"))}
        apps[1].keep(grown[3])
        service.command("extend", 4, "--rounds", LONGER, "--lr", 0.05)
        copied_in = held_open(service, apps, after=3)
        copied = fedavg("backup", tmp_path / "copy", "--run-dir", service.run_dir, "--db", url)
        assert copied.returncode == 0, copied.stderr
        apps[-1].go_on()

        # Friday: the machine is lost in the middle of a round. The service is made anew from the copy, elsewhere.
        assert held_open(service, apps, after=copied_in) < LONGER
        service.kill()
        elsewhere = database(postgres, "after_the_crash")
        restored = fedavg("restore", tmp_path / "copy", "--run-dir", tmp_path / "new", "--db", elsewhere)
        assert restored.returncode == 0, restored.stderr
        service.start(tmp_path / "new", elsewhere, "--new-admin-token")
        apps[-1].go_on()
        service.wait_for_state(4, "done")
        wait_until(lambda: all(len(app.models()) == 4 for app in apps), "the last model on each device")
        runs = service.runs()
        changes = list(json.loads(service.asked("runs", "--ledger", 4, "--json"))["changes"])
        assert service.stop() == 0

    assert {number: found["state"] for number, found in runs.items()} == {
        1: "done", 2: "cancelled", 3: "cancelled", 4: "done", 5: "done", 6: "done",
    }  # fmt: skip
    assert [change["what"] for change in changes] == ["extended", "restored"]
    first, private = simulated(FIRST, as_data(toy)), simulated(PRIVATE, as_data(toy))
    longer = replace(FIRST, rounds=LONGER, lr="0.1,4:0.05")
    last = simulated(longer, Grown(as_data(toy), as_data(grown), 4))
    bits = [each.summary.model_sha256 for each in (first, private, last)]
    fitted = simulated(LINES, as_data(line), LINE_TASK).model
    for app in apps:
        told = app.models()
        assert [model["sha256"] for model in told if model["task"] == TOY] == bits
        assert [model["round"] for model in told] == [3, 3, 2, LONGER]
        assert told[1]["sha256"] in runs[5]["detail"]
    (numbers_of_line,) = node.models()
    assert numbers_of_line == pytest.approx([fitted.weight.item(), fitted.bias.item()], abs=1e-5)
    with Store.open(elsewhere, "run_4") as store, store.connections.read("look") as connection:
        assert found_schema(connection) == LATEST


def submit(service, folder, name, plan):
    (folder / f"{name}.toml").write_text(plan.to_toml())
    return int(service.command("submit", folder / f"{name}.toml", "--name", name))


def clients(service):
    found = service.seen.admin("GET", "/admin/clients").json["clients"]
    return {client["client"]: client for client in found}


def held_open(service, apps, after):
    """Wait for a round after that one, in which all updates are in but that of the last app, which is paused."""
    wait_until(lambda: service.seen.status()["committed"] >= after + 1, "more rounds")
    apps[-1].pause()

    def but_for_one():
        found = service.seen.status()["round"]
        return found and found["accepted"] == len(apps) - 1 and found["round"]

    return wait_until(but_for_one, "all updates but one")
