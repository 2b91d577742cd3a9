"""The fleet's authority: keys and vouchers from the command line, as a process, and in a fleet of signed sessions."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from harness import Fleet, Hand, log_lines, serving, start_command, wait_until
from tiny import FEW, few_plan, tiny_plan

import fedavg
from fedavg.cli import cli
from fedavg.errors import FedAvgError, FleetError, PlanError
from fedavg.fleets.http.device.enrolment import own_key
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import Link, ServerRefused
from fedavg.fleets.http.device.vouching import asking, own_identity
from fedavg.fleets.http.protocol.keys import ClientKey, KeyFileError
from fedavg.fleets.http.protocol.messages import MaskAnswer, ReportRequest, UpdateAnswer, WorkOffer
from fedavg.fleets.http.protocol.strict import parse
from fedavg.fleets.http.protocol.vouchers import PATH, Vouched, load_public, request_for, save_public
from fedavg.secagg import ClientSession, answer
from fedavg.secagg import parse as parse_message
from fedavg.setup import simulation

PLAN = {"rounds": 2, "C": 1.0, "clients": 3, "secagg": "complete:4:20:signed=true"}


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=True)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def authority(tmp_path):
    folder = tmp_path / "authority"
    assert run("authority", "create", folder).exit_code == 0
    return folder


def test_offline_a_device_waits_for_its_voucher_and_then_has_an_identity(authority, tmp_path):
    files = DeviceFiles(tmp_path / "device")
    files.prepare()
    key, pinned = own_key(files.path("key.pem")), load_public(authority / "authority.pub")
    with pytest.raises(FleetError, match=r"have the fleet's authority sign .*device.pub"):
        own_identity(files, key, pinned, None)
    signed = run("authority", "sign", authority, files.path("device.pub"), "--name", "a device")
    files.path("voucher").write_text(signed.output)
    assert own_identity(files, key, pinned, None).public == key.public
    (line,) = (authority / "signed.jsonl").read_text().splitlines()
    assert json.loads(line) == {"key": key.public.hex(), "name": "a device"}
    assert (mode(authority), mode(authority / "authority.key")) == (0o700, 0o600)


def test_an_authority_is_never_written_over(authority):
    before = (authority / "authority.key").read_bytes()
    assert isinstance(run("authority", "create", authority).exception, KeyFileError)
    assert (authority / "authority.key").read_bytes() == before


def test_a_voucher_of_another_authority_or_for_another_key_is_refused(authority, tmp_path):
    files = DeviceFiles(tmp_path / "device")
    files.prepare()
    key, other = own_key(files.path("key.pem")), ClientKey.generate()
    save_public(tmp_path / "other.pub", other.public)
    files.path("voucher").write_text(run("authority", "sign", authority, tmp_path / "other.pub").output)
    with pytest.raises(FleetError, match="not the pinned authority's signature"):
        own_identity(files, key, load_public(authority / "authority.pub"), None)
    files.path("voucher").write_text("no voucher")
    with pytest.raises(FleetError, match="damaged"):
        own_identity(files, key, load_public(authority / "authority.pub"), None)


def test_a_file_that_is_no_public_key_is_told_clearly(tmp_path):
    (tmp_path / "no.pub").write_text("no key")
    with pytest.raises(KeyFileError, match="expected PEM"):
        load_public(tmp_path / "no.pub")


def test_as_a_process_it_vouches_for_those_who_have_the_token_and_the_key_and_for_no_more_than_allowed(
    authority, tmp_path
):
    log = tmp_path / "authority.log"
    process = start_command(log, "authority", "serve", str(authority), "--devices", "2", "--listen", "127.0.0.1:0")
    try:
        (line,) = wait_until(lambda: [line for line in log_lines(log) if line["event"] == "serving"], "the authority")
        url, token = line["url"], (authority / "token").read_text()
        assert mode(authority / "token") == 0o600
        make_link = lambda url, key: Link(url, key, None, 10.0)  # noqa: E731
        keys = [ClientKey.generate() for _ in range(3)]
        files = DeviceFiles(tmp_path / "device")
        files.prepare()
        identity = own_identity(files, keys[0], load_public(authority / "authority.pub"), asking(url, token, make_link))
        assert asking(url, token, make_link)(keys[0]) == identity.voucher, "the same again"
        asking(url, token, make_link)(keys[1])
        for reason, ask in {
            "token-used": lambda: asking(url, token, make_link)(keys[2]),
            "token-unknown": lambda: asking(url, "fedavg_join_wrong", make_link)(keys[0]),
            "bad-signature": lambda: ask_with_the_proof_of_another(url, keys, token),
        }.items():
            with pytest.raises(ServerRefused) as refused:
                ask()
            assert refused.value.error == reason
        process.terminate()
        process.join(120)
        assert process.exitcode == 0
    finally:
        process.kill()
    assert len((authority / "signed.jsonl").read_text().splitlines()) == 2
    assert token not in log.read_text()


def ask_with_the_proof_of_another(url, keys, token):
    from dataclasses import replace

    link = Link(url, keys[0], None, 10.0)
    try:
        link.ask(Vouched, PATH, replace(request_for(keys[0], token), proof=request_for(keys[1], token).proof))
    finally:
        link.close()


def test_a_served_plan_and_its_authority_belong_together(authority, tmp_path):
    for plan, options, match in (
        (tiny_plan(**PLAN), (), "expected --authority"),
        (tiny_plan(rounds=1), ("--authority", authority / "authority.pub"), "for signed sessions"),
    ):
        (tmp_path / "plan.toml").write_text(plan.to_toml())
        served = run("serve", tmp_path / "plan.toml", "--insecure", "--run-dir", tmp_path / "run", *options)
        assert isinstance(served.exception, PlanError)
        assert match in str(served.exception)


def test_options_of_a_device_that_would_be_ignored_are_errors(authority, tmp_path):
    token = tmp_path / "token"
    token.write_text("x")
    for options in (
        ("--authority-url", "http://127.0.0.1:1"),
        ("--authority", authority / "authority.pub", "--authority-token-file", token),
        ("--min-cohort", 20),
    ):
        joined = run("join", "http://127.0.0.1:1", "--insecure", "--data", "mnist", "--share", "0/100", *options)
        assert isinstance(joined.exception, FedAvgError), options


# A fleet


def signed_fleet(tmp_path, authority, **changes):
    plan = few_plan(**{**PLAN, "clients": len(FEW), **changes})
    fleet = Fleet(tmp_path, plan, len(FEW), "--authority", str(authority / "authority.pub"))
    for device in fleet.devices:
        device.vouch(ClientKey.load(authority / "authority.key"))
    return fleet


def test_a_fleet_of_signed_sessions_learns_what_the_simulator_learns(tmp_path, authority):
    """And the files of a device are its user's alone, also with a umask and a folder that let others in."""
    (tmp_path / "device-0").mkdir(mode=0o755)
    with signed_fleet(tmp_path, authority) as fleet:
        summary = fleet.finished()
    assert summary["model_sha256"] == fedavg.run(fleet.plan).summary.model_sha256
    assert fleet.server.lines("client reports") == []
    for folder, _, names in os.walk(tmp_path / "device-0"):
        assert mode(Path(folder)) == 0o700
        open_to = {name: oct(mode(Path(folder) / name)) for name in names if mode(Path(folder) / name) != 0o600}
        assert open_to.keys() <= {"device.pub"}, open_to


class Masked(Hand):
    """A client of a session that is led by hand, with the real state machine."""

    def begin(self, setup):
        offer = self.offered()
        numbers = setup.update_size(offer.numbers)
        terms = setup.secagg.terms(bytes.fromhex(offer.session), offer.round, offer.model, offer.invited, numbers,
                                   setup.metrics)  # fmt: skip
        self.offer, self.session = offer, ClientSession(terms, self.k)
        self.send(self.session.advertise())

    @property
    def path(self):
        return f"/v1/rounds/{self.offer.round}/{self.offer.attempt}/session"

    def send(self, message):
        parse(UpdateAnswer, self.link.upload(self.path, message.to_bytes()), 1000)

    def step(self, number):
        """Wait for the message of a phase; returns the answer to it, which is not sent."""
        asked = wait_until(lambda: isinstance(found := self.poll(1.0), MaskAnswer) and found, f"step {number}")
        assert asked.step == number
        encoding = self.session.terms.encoding
        ring = encoding.encode(np.zeros(encoding.dimension, np.float32), 5.0, {"train_loss": 1.0}).ring
        return answer(self.session, parse_message(self.link.fetch(self.path)), lambda: ring)


def until_unmasking(hands, setup):
    for hand in hands:
        hand.begin(setup)
    for step in (2, 3):
        for hand in hands:
            hand.send(hand.step(step))
    return [hand.step(5) for hand in hands]


def test_a_server_killed_while_a_sum_is_opened_has_the_same_sum_opened_when_it_is_back(tmp_path):
    """One client has given out its shares, and gives out none of another session of this round."""
    plan = tiny_plan(**{**PLAN, "rounds": 1, "secagg": "complete:4:20"})
    with serving(tmp_path, plan, "--min-clients", "3") as server:
        hands, setup = [Masked(server, k) for k in range(3)], simulation(plan)[0]
        for hand in hands:
            hand.poll(0)
        shares = until_unmasking(hands, setup)
        hands[0].send(shares[0])
        server.kill()
        server.go_on(lambda s: s["round"], "the round again")
        for hand, share in zip(hands, shares, strict=True):
            again = hand.step(5)
            assert again == share, "the same session, and the same question"
            hand.send(again)
        server.wait_for(lambda s: s["done"], "the round")
        assert server.lines("abandoned") == []


def test_who_has_opened_a_sum_is_not_invited_to_another_attempt(tmp_path):
    """Two of three leave before they give out their shares: the next attempt is for them alone."""
    plan = tiny_plan(**{**PLAN, "rounds": 1, "secagg": "complete:4:20"})
    with serving(tmp_path, plan, "--min-clients", "2", "--quorum", "0.1") as server:
        hands, setup = [Masked(server, k) for k in range(3)], simulation(plan)[0]
        for hand in hands:
            hand.poll(0)
        server.wait_for(lambda s: s["round"], "the round")
        invited = [hand for hand in hands if isinstance(hand.poll(0), WorkOffer)]
        shares = until_unmasking(invited, setup)
        invited[0].send(shares[0])
        for hand in invited[1:]:
            gone = ReportRequest(hand.offer.round, hand.offer.attempt, "failed", "session-left", None, "gone")
            hand.link.ask(UpdateAnswer, "/v1/report", gone)
        others = [hand for hand in hands if hand is not invited[0]]
        offers = [hand.offered() for hand in others]
        assert [(offer.attempt, offer.invited) for offer in offers] == [(1, 2), (1, 2)]
        assert not isinstance(invited[0].poll(0), WorkOffer)
    assert "shares of client" in server.lines("abandoned")[0]["reason"]
