"""A malicious server against real devices: it invents peers, tells different stories, asks twice, lies in offers."""

from dataclasses import replace
from hashlib import sha256
from secrets import token_bytes

import numpy as np
import pytest
from harness import DeviceProcess, wait_until
from liar import lying
from tiny import DATA, SIZES, tiny_plan

from fedavg.fleets.http.device.connection import Connection
from fedavg.fleets.http.device.policy import LONGEST_WAIT_S, Policy
from fedavg.fleets.http.protocol.keys import ClientKey
from fedavg.fleets.http.protocol.messages import DoneAnswer, WaitAnswer
from fedavg.programs.device import Device
from fedavg.secagg import ClientSession, ServerSession, SessionStep, Signing, answer, parse
from fedavg.secagg.identity import vouch
from fedavg.secagg.messages import (
    Endorsement,
    KeyAdvert,
    MaskedInput,
    Roster,
    SealedShares,
    UnmaskRequest,
    UnmaskShares,
)
from fedavg.setup import simulation

NUMBERS = 195
UNSIGNED, SIGNED = "complete:4:20", "complete:4:20:signed=true"
REPLIES = {
    SessionStep.KEYS: KeyAdvert,
    SessionStep.SHARES: SealedShares,
    SessionStep.INPUTS: MaskedInput,
    SessionStep.ENDORSEMENTS: Endorsement,
    SessionStep.UNMASKING: UnmaskShares,
}
AUTHORITY = ClientKey.generate()


def masked_plan(secagg, **changes):
    return tiny_plan(**{"rounds": 5, "C": 1.0, "clients": len(SIZES), "secagg": secagg, **changes})


@pytest.fixture
def devices(tmp_path):
    """Real devices, one after another as a test starts them; killed at the end."""
    started = []

    def start(liar, k, policy=None, vouched=False):
        device = DeviceProcess(liar, k, tmp_path)
        device.policy = policy
        if vouched:
            device.vouch(AUTHORITY)
        device.start("token")
        started.append(device)
        return device

    yield start
    for device in started:
        device.kill()


class Session:
    """A session that the server leads with real devices and with puppets: clients of its own making."""

    def __init__(self, liar, real, puppets=(), identity=None, round=1, attempt=0, name=None):
        setup, ids = simulation(liar.plan)[0], sorted((*real, *puppets))
        self.liar, self.real = liar, list(real)
        model = sha256(liar.weights).hexdigest()
        name, numbers = name or token_bytes(16), setup.update_size(NUMBERS)
        self.terms = setup.secagg.terms(name, round, model, len(ids), numbers, setup.metrics)
        self.offer = liar.offer(round, attempt, name, len(ids))
        authority = AUTHORITY.public if self.terms.signed else None
        self.server = ServerSession(self.terms, ids, authority)
        self.puppets = {k: ClientSession(self.terms, k, identity) for k in puppets}
        self.inbox = dict.fromkeys(ids)

    def ask(self):
        """Show every real device what is there for it in this phase."""
        for k in self.real:
            if k in self.inbox and self.inbox[k] is None:
                self.liar.say(k, self.offer)
            elif k in self.inbox:
                self.liar.show(k, self.offer, int(self.server.phase), self.inbox[k])

    def phase(self, silent=()):
        """A phase as an honest server would lead it; puppets know that their own input is zero."""
        self.ask()
        encoding = self.terms.encoding
        zeros = encoding.encode(np.zeros(encoding.dimension, np.float32), 1.0, {"train_loss": 0.0}).ring
        for k in sorted(self.server.awaited - set(silent)):
            if k in self.puppets:
                self.server.receive(answer(self.puppets[k], self.inbox[k], lambda: zeros))
            else:
                self.server.receive(self.liar.answers(k, REPLIES[self.server.phase], self.terms.session)[-1])
        if self.server.phase is SessionStep.UNMASKING:
            return self.server.finish()
        self.inbox = {k: parse(message.to_bytes()) for k, message in self.server.advance().items()}
        return None

    def until(self, phase):
        while self.server.phase < phase:
            self.phase()
        return self

    def sum(self):
        return self.until(SessionStep.UNMASKING).phase().ring


# The peers


def test_without_an_authority_a_server_that_invents_the_peers_learns_the_update(devices):
    """As docs/security.md says of unsigned sessions: the other four are its own, so the sum is one update."""
    with lying(masked_plan(UNSIGNED), NUMBERS) as liar:
        devices(liar, 0)
        learned = Session(liar, [0], range(1, 5))
        decoded = learned.terms.encoding.decode(learned.sum(), 5)
    assert decoded.weight == SIZES[0] + 4
    assert np.abs(decoded.vector).max() > 0.01, "the update of client 0, all alone"


def test_devices_that_pin_an_authority_share_nothing_with_peers_that_it_does_not_know(devices):
    stranger = ClientKey.generate()
    invented = Signing(stranger.private, vouch(stranger.private, stranger.public), stranger.public)
    with lying(masked_plan(SIGNED), NUMBERS) as liar:
        device = devices(liar, 0, vouched=True)
        session = Session(liar, [0], range(1, 5), invented)
        session.ask()
        own = liar.answers(0, KeyAdvert, session.terms.session)[0]
        others = [puppet.advertise() for puppet in session.puppets.values()]
        session.liar.show(0, session.offer, 2, Roster(session.terms.session, (own, *others)))
        said = liar.reported(0, "session-left")
        assert "not vouched for the identity of client 1" in said["detail"]
        assert all(isinstance(parse(body), KeyAdvert) for body in liar.sent[0])
        assert device.alive


def test_one_colluding_device_does_not_stand_for_all_the_peers(devices):
    """It is vouched for, and signs keys under every number that the server asks for."""
    colluding = ClientKey.generate()
    identity = Signing(colluding.private, vouch(AUTHORITY.private, colluding.public), AUTHORITY.public)
    with lying(masked_plan(SIGNED), NUMBERS) as liar:
        devices(liar, 0, vouched=True)
        session = Session(liar, [0], range(1, 5), identity)
        session.ask()
        own = liar.answers(0, KeyAdvert, session.terms.session)[0]
        others = [puppet.advertise() for puppet in session.puppets.values()]
        session.liar.show(0, session.offer, 2, Roster(session.terms.session, (own, *others)))
        assert "under two numbers" in liar.reported(0, "session-left")["detail"]


def test_a_server_that_offers_an_unsigned_session_is_declined_where_signing_is_asked_for(devices):
    with lying(masked_plan(UNSIGNED), NUMBERS) as liar:
        device = devices(liar, 0, vouched=True)
        said = liar.reported(0, "unsigned-session")
        wait_until(lambda: not device.alive, "the device to end")
    assert (said["kind"], said["round"]) == ("declined", 0)
    assert liar.sent == {}


def test_a_device_without_an_authority_takes_no_part_in_signed_sessions(devices):
    with lying(masked_plan(SIGNED), NUMBERS) as liar:
        devices(liar, 0)
        assert liar.reported(0, "no-authority")["kind"] == "declined"


# The survivors


def test_devices_that_are_told_different_survivors_open_nothing(devices):
    """Three hear that all live, two that client 0 died: neither set has the four signatures that it needs."""
    with lying(masked_plan(SIGNED), NUMBERS) as liar:
        for k in range(5):
            devices(liar, k, vouched=True)
        session = Session(liar, range(5)).until(SessionStep.ENDORSEMENTS)
        alive = session.inbox[1]
        dead = replace(alive, survivors=(1, 2, 3, 4), dropped=(0,))
        told = {k: dead if k in (3, 4) else alive for k in range(5)}
        signed = {}
        for k, message in told.items():
            liar.show(k, session.offer, 4, message)
            signed[k] = liar.answers(k, Endorsement, session.terms.session)[0]
        for k, message in told.items():
            endorsed = tuple(signed[other] for other in told if told[other] == message)
            asked = UnmaskRequest(alive.session, message.survivors, message.dropped, endorsed)
            liar.show(k, session.offer, 5, asked)
            assert "endorse the survivor set" in liar.reported(k, "session-left")["detail"]
    shares = [body for bodies in liar.sent.values() for body in bodies if isinstance(parse(body), UnmaskShares)]
    assert shares == []


def test_no_sum_of_fewer_clients_than_the_device_asks_for_is_opened(devices):
    """Five are invited and one is said to be lost, which the plan's threshold allows and this device does not."""
    with lying(masked_plan(UNSIGNED), NUMBERS) as liar:
        policy = Policy(require_secagg=True, min_cohort=5)
        for k in range(5):
            devices(liar, k, policy)
        session = Session(liar, range(5)).until(SessionStep.INPUTS)
        session.phase(silent=[4])
        session.ask()
        assert "it asks for 5" in liar.reported(0, "session-left")["detail"]


# One sum per round


def test_a_second_sum_of_a_round_is_opened_by_nobody_who_opened_the_first(devices):
    """Sums of 5, 4, 3 and 2 of the same clients would give their updates one by one."""
    with lying(masked_plan(UNSIGNED), NUMBERS) as liar:
        running = [devices(liar, k) for k in range(5)]
        opening = Session(liar, range(5))
        first = opening.sum()
        assert len(first) > NUMBERS
        for attempt, fewer in enumerate((4, 3, 2), 1):
            liar.reports.clear()
            name = opening.terms.session if fewer == 3 else None  # the old name is no way in
            Session(liar, range(fewer), attempt=attempt, name=name).ask()
            for k in range(fewer):
                assert "opens none of 1 now" in liar.reported(k, "round-opened")["detail"]
        running[0].kill()  # what it has opened is on its disk
        liar.reports.clear()
        running[0].start("token")
        Session(liar, range(2), attempt=9).ask()
        liar.reported(0, "round-opened")
        second = Session(liar, range(4), round=2).sum()
        assert len(second) == len(first), "the next round is none of that"
    opened = [parse(body) for body in liar.sent[0] if isinstance(parse(body), UnmaskShares)]
    assert len({message.session for message in opened}) == 2


def test_an_unmasking_asked_for_again_gives_the_same_answer(devices):
    """A server that was restarted asks the same; that shows nothing new."""
    with lying(masked_plan(UNSIGNED), NUMBERS) as liar:
        running = [devices(liar, k) for k in range(3)]
        session = Session(liar, range(3)).until(SessionStep.UNMASKING)
        session.ask()
        first = liar.answers(0, UnmaskShares, session.terms.session)[0]
        running[0].kill()
        running[0].start("token")
        liar.show(0, session.offer, 5, session.inbox[0])
        assert liar.answers(0, UnmaskShares, session.terms.session, count=2)[1] == first


# Numbers without measure

HUGE = 2**31 - 1


@pytest.mark.parametrize(
    "change",
    [{"epochs": HUGE}, {"round": HUGE}, {"numbers": 2**40}, {"numbers": 1}, {"invited": HUGE}, {"session": "ab" * 16}],
    ids=lambda change: next(iter(change)),
)
def test_an_offer_beyond_the_plan_or_the_task_is_declined_and_a_good_one_after_it_is_not(devices, change):
    with lying(tiny_plan(rounds=5, clients=len(SIZES)), NUMBERS) as liar:
        device = devices(liar, 0)
        liar.say(0, liar.offer(1, 0, None, 4, **change))
        said = liar.reported(0, "bad-offer")
        assert said["kind"] == "declined"
        assert device.lines("declined")
        liar.say(0, liar.offer(1, 0, None, 4))
        wait_until(lambda: liar.sent.get(0), "the update of a good offer")


def test_training_ends_at_the_deadline_however_many_epochs_the_plan_has(devices):
    with lying(tiny_plan(rounds=5, E=HUGE, clients=len(SIZES)), NUMBERS) as liar:
        device = devices(liar, 0)
        liar.say(0, liar.offer(1, 0, None, 4, deadline_s=1.0))
        assert liar.reported(0, "out-of-time")["kind"] == "failed"
        assert device.alive
    assert liar.sent == {}


def test_a_number_of_changes_does_not_raise_the_limit_of_what_is_read(devices):
    """With the model of round 1 at hand, 2^31 - 2 changes would be read up to 8.6 GB."""
    with lying(tiny_plan(rounds=HUGE, downlink="stc:0.1", clients=len(SIZES)), NUMBERS) as liar:
        device = devices(liar, 0)
        liar.say(0, liar.offer(1, 0, None, 4))
        wait_until(lambda: liar.sent.get(0), "round 1")
        offer = liar.offer(HUGE, 0, None, 4, changes=HUGE)
        path = f"/v1/models/{offer.model}/changes/{HUGE - 1}"
        liar.files[path] = lambda: (bytes(2**16) for _ in range(2000))
        liar.say(0, offer)
        wait_until(lambda: len(liar.sent[0]) > 1, "the update of the last round")
        assert device.alive
    assert path not in [asked for _, asked in liar.asked]
    assert liar.bytes_out < 2**20


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[1]", b"\xff", b'{"type":"work"}', b'{"type":"mask","round":1}', b"[" * 10_000, bytes(200_000)],
    ids=lambda body: repr(body[:12]),
)
def test_a_malformed_offer_does_not_end_a_device(devices, answer):
    with lying(tiny_plan(rounds=5, clients=len(SIZES)), NUMBERS) as liar:
        device = devices(liar, 0)
        liar.say(0, answer or b" ")
        wait_until(lambda: device.lines("malformed answer"), "the malformed answer to be noticed")
        liar.say(0, liar.offer(1, 0, None, 4))
        wait_until(lambda: liar.sent.get(0), "the update of a good offer")


def test_messages_of_no_session_do_not_end_a_device(devices):
    """A session that it has no part in, and bytes that are no message."""
    with lying(masked_plan(UNSIGNED), NUMBERS) as liar:
        device = devices(liar, 0)
        session = Session(liar, range(3))
        liar.show(0, session.offer, 5, UnmaskRequest(session.terms.session, (0, 1), (2,)))
        assert "no part in the session" in liar.reported(0, "session-left")["detail"]
        session.ask()
        liar.answers(0, KeyAdvert, session.terms.session)
        liar.reports.clear()
        liar.show(0, session.offer, 2, UnmaskRequest(session.terms.session, (0, 1), (2,)))
        liar.inbox[0] = b"FSA1" + bytes(40)
        liar.reported(0, "session-left")
        liar.say(0, DoneAnswer(1, "00" * 32, False, None))
        wait_until(lambda: not device.alive, "the device to end in good order")
    assert device.process.exitcode == 0


def test_a_server_does_not_send_a_device_away_for_a_week(tmp_path):
    with lying(tiny_plan(rounds=5, clients=len(SIZES)), NUMBERS) as liar:
        liar.say(0, WaitAnswer(7 * 86_400, 0, None))
        connection = Connection(insecure=True, give_up_after_s=30.0)
        with Device(
            liar.url, "tiny:TASK", DATA.client(0), state=tmp_path, token="token", client=0, connection=connection
        ) as device:
            step = device.step()
    assert step.asked == "wait"
    assert 0 < step.pause_s <= 1.1 * LONGEST_WAIT_S
