"""What a device's owner asks for is kept by the device, whatever the server's plan or offers say."""

from dataclasses import replace

import pytest
from harness import RIGHT, Clock, DeviceProcess, Fleet, wait_until
from liar import lying
from tiny import SIZES, tiny_plan

from fedavg.errors import FleetError
from fedavg.fleets.http.device.allowance import DAY_S, Allowance, Uptime
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.policy import Declined, Policy, check_plan, fewest_survivors
from fedavg.setup import simulation
from toys import toy_plan

NUMBERS = 195
SHARED = ("clip:1.0", "weigh:equal", "noise:30:where=clients:dropout=0.25:bits=12")


@pytest.fixture
def device(tmp_path):
    started = []

    def start(liar, policy, clock=RIGHT):
        process = DeviceProcess(liar, 0, tmp_path)
        process.policy, process.clock = policy, clock
        process.start("token")
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def declined(plan, policy, pinned=False):
    with pytest.raises(Declined) as caught:
        check_plan(policy, simulation(plan)[0], pinned)
    return caught.value.reason


def test_a_declined_plan_is_seen_by_the_operator(tmp_path):
    """A real server: it goes on, and its status counts the reason."""
    with Fleet(tmp_path, tiny_plan(rounds=1, clients=2), 2) as fleet:
        fleet.devices[1].kill()
        careful = DeviceProcess(fleet.server, 1, tmp_path / "other")
        careful.policy = Policy(require_secagg=True)
        (tmp_path / "other").mkdir()
        careful.start(fleet.token)
        fleet.server.wait_for(lambda s: s["reports"].get("no-secagg"), "the reason")
        careful.process.join(60)
    (line,) = careful.lines("declined")
    assert line["reason"] == "no-secagg"
    assert "this device requires it" in line["detail"]
    said = [line for line in fleet.server.lines("client reports") if line["reason"] == "no-secagg"]
    assert said[0]["kind"] == "declined"


def test_an_offer_to_too_few_clients_is_declined(device):
    plan = tiny_plan(rounds=5, E=3, clients=len(SIZES), secagg="complete:4:20")
    with lying(plan, NUMBERS) as liar:
        device(liar, Policy(require_secagg=True, min_cohort=6))
        liar.say(0, liar.offer(1, 0, bytes(16), 5))
        assert liar.reported(0, "small-cohort")["kind"] == "declined"
    assert liar.sent == {}


def test_more_epochs_than_the_device_allows_are_declined(device):
    with lying(tiny_plan(rounds=5, E=3, clients=len(SIZES)), NUMBERS) as liar:
        device(liar, Policy(max_epochs=2))
        liar.say(0, liar.offer(1, 0, None, 4))
        assert "3 epochs" in liar.reported(0, "many-epochs")["detail"]
        liar.say(0, liar.offer(1, 1, None, 4, epochs=2))
        wait_until(lambda: liar.sent.get(0), "an update of two epochs")


def test_a_bound_on_cohorts_without_secure_aggregation_is_an_error():
    with pytest.raises(FleetError, match="add --require-secagg"):
        Policy(min_cohort=20)


def test_noise_counts_if_devices_add_it_and_as_if_they_took_part_in_every_round():
    policy = Policy(require_dp=50.0)
    assert declined(toy_plan(), policy) == "weak-privacy"
    assert declined(toy_plan(stages=("clip:1.0", "weigh:equal", "noise:30")), policy) == "weak-privacy"
    local = toy_plan(stages=("weigh:equal", "localdp:8:1.0"), rounds=4)
    check_plan(policy, simulation(local)[0], pinned=False)
    assert declined(replace(local, rounds=4000), policy) == "weak-privacy"
    assert declined(local, Policy(require_dp=1.0)) == "weak-privacy"


def test_noise_in_shares_needs_vouched_peers_and_enough_of_them():
    """Of a cohort of 4, three shares make up the noise at dropout 0.25: no sum of fewer is opened."""
    plan = toy_plan(stages=SHARED, secagg="complete:4:20", C=0.6, rounds=2)
    policy = Policy(require_dp=50.0)
    assert declined(plan, policy) == "weak-privacy"
    signed = simulation(replace(plan, secagg="complete:4:20:signed=true"))[0]
    check_plan(policy, signed, pinned=True)
    assert fewest_survivors(policy, signed) == 3
    assert fewest_survivors(Policy(require_secagg=True, min_cohort=9), signed) == 9
    assert fewest_survivors(Policy(), signed) == 0


# Rounds a day


class Machine:
    """Its uptime is set by hand."""

    def __init__(self):
        self.boot, self.seconds = "first", 100.0

    def __call__(self):
        return Uptime(self.boot, self.seconds)


def test_two_rounds_a_day_are_two_in_any_24_hours(tmp_path):
    machine, files = Machine(), DeviceFiles(tmp_path)
    allowance = Allowance(files, 2, machine)
    for hours in (0, 10):
        machine.seconds = 100 + 3600 * hours
        assert allowance.left()
        allowance.spend()
    for hours, left in ((10, False), (23.9, False), (24, True)):
        machine.seconds = 100 + 3600 * hours
        assert Allowance(files, 2, machine).left() == left, "also after a restart of the device"
    allowance.spend()
    machine.seconds = 100 + 3600 * 33
    assert not allowance.left()


def test_neither_a_reboot_nor_an_uptime_that_goes_back_gives_a_round_more(tmp_path):
    machine, files = Machine(), DeviceFiles(tmp_path)
    allowance = Allowance(files, 1, machine)
    allowance.spend()
    machine.seconds = 50.0
    assert not allowance.left()
    machine.boot, machine.seconds = "second", 10 * DAY_S
    assert not allowance.left(), "time between boots is not known, so it does not count"
    machine.seconds = 11 * DAY_S
    assert allowance.left()


def test_no_more_rounds_a_day_than_allowed_whatever_the_clock_and_the_restarts(device):
    """One round a day. The wall clock is then two days ahead, and the device is started again."""
    plan = tiny_plan(rounds=5, clients=len(SIZES))
    with lying(plan, NUMBERS) as liar:
        first = device(liar, Policy(max_rounds_per_day=1))
        liar.say(0, liar.offer(1, 0, None, 4))
        wait_until(lambda: liar.sent.get(0), "round 1")
        liar.say(0, liar.offer(2, 0, None, 4))
        assert liar.reported(0, "many-rounds")["round"] == 2
        first.kill()
        liar.reports.clear()
        device(liar, Policy(max_rounds_per_day=1), clock=Clock(48.0))
        assert liar.reported(0, "many-rounds")["round"] == 2
    assert len(liar.sent[0]) == 1
