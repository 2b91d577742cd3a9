"""Replicas whose clients show certificates: to each replica itself, or to the nginx that ends TLS before them."""

from contextlib import closing
from types import SimpleNamespace

import pytest
from harness import Hand, Server, wait_until
from several import ENDLESS, Front, Replicas, full_plan, needs_nginx

from fedavg.errors import FleetError
from fedavg.fleets.http.device.link import Link
from fedavg.fleets.http.protocol.certs import client_context, make_certificates
from fedavg.fleets.http.protocol.keys import ClientKey

PLAN = full_plan(rounds=ENDLESS, C=0.25)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"), ["127.0.0.1"], clients=2)


def of(pair, prefix=""):
    return (f"--{prefix}cert", str(pair.certificate), f"--{prefix}key", str(pair.key))


def speak(made, pair=None):
    """How a client speaks that shows a certificate, or none."""
    return client_context(made.ca.certificate, *((pair.certificate, pair.key) if pair else ()))


def a_round_is_committed(fleet, hands):
    for hand in hands:
        hand.poll(0)
    for hand in hands:
        assert not hand.upload(hand.offered()).duplicate
    wait_until(lambda: [line for each in fleet.replicas for line in each.lines("committed")], "round 1")


def test_replicas_that_ask_for_certificates_show_each_other_theirs(made, tmp_path, url):
    """As behind a balancer that passes TLS through: each connection ends at a replica."""
    asking = (*of(made.server), "--client-ca", str(made.ca.certificate), *of(made.clients[0], "replica-"))
    tls = speak(made, made.clients[1])
    with Replicas(tmp_path, PLAN, 2, url, *asking, "--min-clients", "2", clients=0, tls=tls) as fleet:
        fleet.enrol(2)
        a_round_is_committed(fleet, [fleet.hand(replica, k) for k, replica in enumerate(fleet.replicas)])
        gathered = [line for each in fleet.replicas for line in each.lines("gathered")]
        assert gathered[0]["replicas"] == 2, "the leader has asked the other one for its part"
        for replica in fleet.replicas:
            with closing(Link(replica.url, ClientKey.generate(), speak(made), 1.0)) as link, pytest.raises(FleetError):
                link.fetch("/v1/status")


@needs_nginx
def test_nginx_that_ends_tls_asks_for_certificates(made, tmp_path, url):
    with Replicas(tmp_path, PLAN, 2, url, "--min-clients", "2", clients=0) as fleet:
        listens = (
            f"ssl; ssl_certificate {made.server.certificate}; ssl_certificate_key {made.server.key}; "
            f"ssl_client_certificate {made.ca.certificate}; ssl_verify_client on"
        )
        front = Front(tmp_path, [replica.port for replica in fleet.replicas], listens)
        with front.running():
            there = SimpleNamespace(
                url=front.url, tls=speak(made, made.clients[0]), plan=PLAN, hands=[], join_token=fleet.token
            )
            hands = [Hand(there, k) for k in range(2)]
            a_round_is_committed(fleet, hands)
            stranger = SimpleNamespace(**vars(there) | {"tls": speak(made)})
            with pytest.raises(FleetError):
                Hand(stranger, 2)
            for hand in (*there.hands, *stranger.hands):
                hand.link.close()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, "--client-ca: got it without --replica-cert"),
        ("server", "is not let in by --client-ca"),
    ],
)
def test_replicas_that_could_not_ask_each_other_do_not_start(made, tmp_path, shown, said):
    more = of(getattr(made, shown), "replica-") if shown else ()
    asking = (*of(made.server), "--client-ca", str(made.ca.certificate), *more)
    server = Server(tmp_path, PLAN, "--replica", "--db", "postgresql://x", *asking, tls=speak(made))
    server.start()
    assert server.ended() == 2
    assert said in server.log.read_text()
