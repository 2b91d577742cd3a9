"""The parts of a hub together: what one of them does while another is at work."""

from threading import Thread
from time import monotonic

from harness import PATIENCE_S, wait_until

from fedavg.codecs import make_codec
from fedavg.fleets.http.protocol.messages import WorkOffer
from fedavg.fleets.http.protocol.wire import Expected
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.hub import Hub
from fedavg.fleets.http.server.rounds import OpenRound, RoundPhase
from fedavg.fleets.http.server.store import ClientRow
from fedavg.fleets.http.server.underway import Group
from fedavg.types import Update

MODEL = "0" * 64


def client(k, revoked=False):
    return ClientRow(k, bytes([k]) * 32, 10, "", revoked)


def test_a_round_is_not_closed_by_a_revocation_while_an_update_is_added():
    """The update would be in the sum, and its weight would not."""
    hub, invited = Hub(Guards()), frozenset((0, 1))
    hub.know([client(0), client(1)])
    expected = Expected("0" * 16, 1, 0, MODEL, make_codec("float32"), 2, 10.0, None, frozenset())
    offer = WorkOffer(1, 0, MODEL, 2, 9.0, 1, 4.0, 0.1, {}, None, None, 2, 0, None)
    round = OpenRound(1, 0, MODEL, invited, 2, 1, monotonic() + 9 * PATIENCE_S)
    hub.collecting.open(round, [Group(invited, offer, expected, lambda vector, weight: Update(vector, weight))])
    round.accept(0)
    revoking = Thread(target=lambda: hub.know([client(1, revoked=True)]))
    with hub.collecting.adding:  # as while the update of client 1 is added
        revoking.start()
        wait_until(lambda: 1 in hub.presence.revoked, "the revocation")
        revoking.join(0.3)
        assert round.phase is RoundPhase.COLLECTING
    revoking.join(PATIENCE_S)
    assert round.phase is RoundPhase.COMMITTING
    assert hub.collecting.counted() == [0]
