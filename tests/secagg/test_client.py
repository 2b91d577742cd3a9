"""What a client does, what it refuses, and that a restart changes neither."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parties import make_identities, party, plain_sum, random_ring, small_terms

from fedavg.secagg import BadMessage, ClientAborted, ClientSession, SessionStep, TermsError
from fedavg.secagg.messages import Endorsement, Roster, ShareDelivery, SurvivorSet, UnmaskRequest

SESSION = small_terms(2).session


def aborts(reason, act):
    """The act makes the client leave for this reason, and it stays away."""
    with pytest.raises(ClientAborted) as caught:
        act()
    assert caught.value.reason == reason


def at(phase, clients=6, silent=None, **terms):
    """Client 0 of a session (t = 5 of 6) with the message that it is about to answer."""
    session = party(small_terms(clients, **terms)).until(phase, silent)
    return session.clients[0], session.inbox[0]


# --- phase 2: the roster ---


def changed(roster, client, **values):
    adverts = tuple(replace(a, **values) if a.client == client else a for a in roster.adverts)
    return replace(roster, adverts=adverts)


def with_advert(roster, advert):
    """The roster with this advert in place of the client's own."""
    return replace(roster, adverts=tuple(advert if a.client == advert.client else a for a in roster.adverts))


@pytest.mark.parametrize("field", ["mask_key", "share_key", "commitment"])
def test_its_own_keys_altered(field):
    client, roster = at(SessionStep.SHARES)
    aborts("altered-keys", lambda: client.share(changed(roster, 0, **{field: bytes(range(32))})))


def test_itself_missing_from_the_roster():
    client, roster = at(SessionStep.SHARES)
    aborts("altered-keys", lambda: client.share(Roster(SESSION, roster.adverts[1:])))


def test_a_client_twice_in_the_roster():
    client, roster = at(SessionStep.SHARES)
    aborts("duplicate", lambda: client.share(Roster(SESSION, roster.adverts + roster.adverts[-1:])))


@pytest.mark.parametrize(("field", "other"), [("mask_key", "mask_key"), ("mask_key", "share_key")])
def test_one_key_under_two_names(field, other):
    client, roster = at(SessionStep.SHARES)
    copied = getattr(roster.adverts[3], other)
    aborts("altered-keys", lambda: client.share(changed(roster, 2, **{field: copied})))


def test_its_own_key_given_to_a_peer():
    client, roster = at(SessionStep.SHARES)
    aborts("altered-keys", lambda: client.share(changed(roster, 2, mask_key=roster.adverts[0].mask_key)))


def test_a_degenerate_share_key():
    client, roster = at(SessionStep.SHARES)
    aborts("altered-keys", lambda: client.share(changed(roster, 2, share_key=bytes(32))))


def test_a_degenerate_masking_key():
    session = party(small_terms(6)).until(SessionStep.SHARES)
    bad = {c: changed(roster, 5, mask_key=bytes(32)) for c, roster in session.inbox.items() if c != 5}
    session.inbox |= bad
    session.until(SessionStep.INPUTS, {SessionStep.SHARES: []})
    aborts("altered-keys", lambda: session.reply(0))


def test_too_few_or_too_many_in_the_roster():
    client, roster = at(SessionStep.SHARES)
    aborts("too-few", lambda: client.share(Roster(SESSION, roster.adverts[:4])))
    client, roster = at(SessionStep.SHARES)
    stranger = replace(roster.adverts[1], client=77, mask_key=b"m" * 32, share_key=b"s" * 32)
    aborts("bad-terms", lambda: client.share(Roster(SESSION, (*roster.adverts, stranger))))


def test_a_second_roster_with_other_keys():
    client, roster = at(SessionStep.SHARES)
    client.share(roster)
    aborts("second-request", lambda: client.share(changed(roster, 2, mask_key=b"m" * 32)))


def test_the_same_roster_again_gives_the_same_shares():
    client, roster = at(SessionStep.SHARES)
    assert client.share(roster) == client.share(roster)


def test_signed_keys_that_an_active_server_has_swapped():
    client, roster = at(SessionStep.SHARES, signed=True)
    aborts("bad-signature", lambda: client.share(changed(roster, 2, mask_key=b"m" * 32)))
    client, roster = at(SessionStep.SHARES, signed=True)
    aborts("bad-signature", lambda: client.share(changed(roster, 2, signature=b"")))
    client, roster = at(SessionStep.SHARES, signed=True)
    aborts("bad-signature", lambda: client.share(changed(roster, 2, signature=roster.adverts[3].signature)))
    client, roster = at(SessionStep.SHARES)
    aborts("bad-signature", lambda: client.share(changed(roster, 2, signature=bytes(64))))


def test_peers_that_the_authority_has_not_vouched_for():
    """A server that invents peers can make them keys and signatures, but no vouchers."""
    other = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    terms = small_terms(6, signed=True)
    invented = ClientSession(terms, 2, make_identities([2], other)[2]).advertise()
    client, roster = at(SessionStep.SHARES, signed=True)
    aborts("not-vouched", lambda: client.share(with_advert(roster, invented)))
    client, roster = at(SessionStep.SHARES, signed=True)
    borrowed = replace(invented, voucher=roster.adverts[3].voucher)
    aborts("not-vouched", lambda: client.share(with_advert(roster, borrowed)))


def test_one_vouched_device_does_not_stand_for_two_peers():
    """A device that colludes with the server signs keys under every number that it is asked for."""
    terms, identity = small_terms(6, signed=True), make_identities([3])[3]
    twice = ClientSession(terms, 2, identity).advertise()
    client, roster = at(SessionStep.SHARES, signed=True)
    aborts("not-vouched", lambda: client.share(with_advert(roster, twice)))


def test_a_client_whose_own_key_is_not_vouched_for_begins_no_session():
    good = make_identities([0, 1])
    with pytest.raises(TermsError, match="voucher"):
        ClientSession(small_terms(4, signed=True), 0, replace(good[0], voucher=good[1].voucher))


@pytest.mark.parametrize("signed", [False, True])
def test_a_clients_own_bound_on_the_survivors_counts_whatever_the_terms(signed):
    """Six are invited and five survive, as the terms allow; this client asks for six."""
    session = party(small_terms(6, signed=signed)).until(SessionStep.INPUTS)
    identity = make_identities([0])[0] if signed else None
    careful = ClientSession.from_bytes(session.clients[0].to_bytes(), identity, least=6)
    careful.mask(session.inbox[0], random_ring(careful.terms, 0))
    survivors = UnmaskRequest(SESSION, (0, 1, 2, 3, 4), (5,))
    aborts("too-few", lambda: careful.endorse(survivors.survivor_set) if signed else careful.unmask(survivors))


# --- phase 3: the shares ---


def test_a_share_that_was_altered():
    client, delivery = at(SessionStep.INPUTS)
    sender, sealed = delivery.sealed[0]
    flipped = ((sender, bytes([sealed[0] ^ 1]) + sealed[1:]), *delivery.sealed[1:])
    aborts("bad-share", lambda: client.mask(ShareDelivery(SESSION, flipped), random_ring(client.terms, 0)))


def test_shares_handed_out_under_another_name():
    client, delivery = at(SessionStep.INPUTS)
    (one, sealed_one), (two, sealed_two), *rest = delivery.sealed
    swapped = ((one, sealed_two), (two, sealed_one), *rest)
    aborts("bad-share", lambda: client.mask(ShareDelivery(SESSION, swapped), random_ring(client.terms, 0)))


def test_shares_twice_from_a_stranger_or_from_too_few():
    for sealed, reason in [
        (lambda s: (s[0], *s), "duplicate"),
        (lambda s: (*s, (99, s[0][1])), "unknown-client"),
        (lambda s: s[:3], "too-few"),
    ]:
        client, delivery = at(SessionStep.INPUTS)
        bad = ShareDelivery(SESSION, sealed(delivery.sealed))
        aborts(reason, lambda client=client, bad=bad: client.mask(bad, random_ring(client.terms, 0)))


def test_two_inputs_under_one_mask_would_show_their_difference():
    client, delivery = at(SessionStep.INPUTS)
    ring = random_ring(client.terms, 0)
    first = client.mask(delivery, ring)
    assert client.mask(delivery, ring) == first
    assert client.mask(delivery, ring).vector != ring.tobytes()
    aborts("second-request", lambda: client.mask(delivery, ring + np.uint32(1)))


def test_a_second_delivery_would_show_a_mask():
    client, delivery = at(SessionStep.INPUTS)
    client.mask(delivery, random_ring(client.terms, 0))
    fewer = ShareDelivery(SESSION, delivery.sealed[1:])
    aborts("second-request", lambda: client.mask(fewer, random_ring(client.terms, 0)))


def test_the_wrong_ring_is_the_callers_mistake():
    client, delivery = at(SessionStep.INPUTS)
    for ring in (np.zeros(3, np.uint32), np.zeros(client.terms.encoding.length, np.uint64)):
        with pytest.raises(ValueError, match="expected"):
            client.mask(delivery, ring)
    client.mask(delivery, random_ring(client.terms, 0))


# --- phases 4 and 5: the survivor set ---

SURVIVOR_SETS = [
    ("listed-dead", (1, 2, 3, 4, 5), (0,)),
    ("listed-dead", (1, 2, 3, 4, 5), ()),
    ("duplicate", (0, 0, 1, 2, 3, 4), (5,)),
    ("duplicate", (0, 2, 1, 3, 4), (5,)),
    ("duplicate", (0, 1, 2, 3, 4), (5, 5)),
    ("duplicate", (0, 1, 2, 3, 4, 5), (5,)),
    ("left-out", (0, 1, 2, 3, 4), ()),
    ("unknown-client", (0, 1, 2, 3, 4), (5, 99)),
    ("too-few", (0, 1, 2, 3), (4, 5)),
]


@pytest.mark.parametrize(("reason", "survivors", "dropped"), SURVIVOR_SETS)
def test_survivor_sets_that_make_a_client_leave(reason, survivors, dropped):
    client, _ = at(SessionStep.UNMASKING)
    aborts(reason, lambda: client.unmask(UnmaskRequest(SESSION, survivors, dropped)))
    client, _ = at(SessionStep.ENDORSEMENTS, signed=True)
    aborts(reason, lambda: client.endorse(SurvivorSet(SESSION, survivors, dropped)))


@pytest.mark.parametrize("phase", [SessionStep.KEYS, SessionStep.SHARES])
@pytest.mark.parametrize("alive", [True, False])
def test_one_that_was_dead_before_the_inputs_is_listed(phase, alive):
    client, request = at(SessionStep.UNMASKING, silent={phase: [5]})
    assert request.survivors == (0, 1, 2, 3, 4)
    bad = replace(request, **({"survivors": (0, 1, 2, 3, 4, 5)} if alive else {"dropped": (5,)}))
    # One that never sent keys is not known at all; one that never shared is known to be gone.
    aborts("unknown-client" if phase is SessionStep.KEYS else "already-dead", lambda: client.unmask(bad))


def test_one_share_per_peer_and_of_the_right_kind():
    client, request = at(SessionStep.UNMASKING, silent={SessionStep.INPUTS: [5]})
    shares = client.unmask(request)
    assert [owner for owner, _ in shares.seeds] == [0, 1, 2, 3, 4]
    assert [owner for owner, _ in shares.keys] == [5]
    assert client.unmask(request) == shares  # a lost answer may be asked for again


def test_a_second_request_with_other_survivors():
    client, request = at(SessionStep.UNMASKING)
    client.unmask(request)
    other = UnmaskRequest(SESSION, (0, 1, 2, 3, 4), (5,))
    aborts("second-request", lambda: client.unmask(other))
    aborts("second-request", lambda: client.unmask(request))  # it has left: not even the first is answered now


def test_endorsements_must_be_real_enough_and_of_survivors():
    client, request = at(SessionStep.UNMASKING, signed=True, silent={SessionStep.INPUTS: [5]})
    good = request.endorsements
    assert [each.client for each in good] == [0, 1, 2, 3, 4]
    cases = [
        ("too-few", good[:4]),
        ("duplicate", (*good, good[1])),
        ("unknown-client", (*good, replace(good[1], client=5))),
        ("unknown-client", (*good, replace(good[1], client=99))),
        ("bad-signature", (*good[:4], Endorsement(SESSION, 4, bytes(64)))),
        ("bad-signature", (*good[:4], Endorsement(SESSION, 4, good[3].signature))),
    ]
    saved, identity = client.to_bytes(), make_identities(range(6))[0]
    for reason, endorsements in cases:
        again = ClientSession.from_bytes(saved, identity)
        bad = replace(request, endorsements=endorsements)
        aborts(reason, lambda again=again, bad=bad: again.unmask(bad))
    assert len(client.unmask(request).seeds) == 5


def test_only_the_survivor_set_that_was_endorsed_is_answered():
    client, request = at(SessionStep.UNMASKING, signed=True)
    other = replace(request, survivors=(0, 1, 2, 3, 4), dropped=(5,))
    aborts("second-request", lambda: client.unmask(other))


# --- the order of things ---


def test_steps_out_of_turn_are_refused_without_harm():
    session = party(small_terms(6, signed=True)).until(SessionStep.SHARES)
    client, roster = session.clients[0], session.inbox[0]
    survivors = tuple(range(6))
    for act in (
        lambda: client.mask(ShareDelivery(SESSION, ()), random_ring(client.terms, 0)),
        lambda: client.endorse(SurvivorSet(SESSION, survivors, ())),
        lambda: client.unmask(UnmaskRequest(SESSION, survivors, ())),
    ):
        with pytest.raises(BadMessage) as caught:
            act()
        assert caught.value.reason == "out-of-turn"
    with pytest.raises(BadMessage) as caught:
        client.share(replace(roster, session=bytes(16)))
    assert caught.value.reason == "wrong-session"
    session.until(SessionStep.UNMASKING)
    assert np.array_equal(session.phase().ring, plain_sum(client.terms, range(6)))


def test_an_unsigned_session_endorses_nothing():
    client, request = at(SessionStep.UNMASKING)
    with pytest.raises(BadMessage) as caught:
        client.endorse(request.survivor_set)
    assert caught.value.reason == "out-of-turn"


def test_an_identity_goes_with_a_signed_session():
    for signed in (True, False):
        identity = None if signed else make_identities([0])[0]
        with pytest.raises(TermsError):
            ClientSession(small_terms(4, signed=signed), 0, identity)
    with pytest.raises(TermsError):
        ClientSession(small_terms(4), 2**32)


# --- restarts ---


@pytest.mark.parametrize("signed", [False, True])
def test_clients_restarted_before_every_step_finish_the_session(signed):
    session = party(small_terms(7, signed=signed))
    identities = make_identities(range(7))
    while True:
        session.clients = {
            c: ClientSession.from_bytes(client.to_bytes(), identities[c] if signed else None)
            for c, client in session.clients.items()
        }
        result = session.phase([6] if session.server.phase is SessionStep.INPUTS else [])
        if result is not None:
            break
    assert np.array_equal(result.ring, plain_sum(session.server.terms, range(6)))


def test_a_restarted_client_answers_the_same_and_refuses_the_same():
    client, request = at(SessionStep.UNMASKING)
    shares = client.unmask(request)
    again = ClientSession.from_bytes(client.to_bytes())
    assert again.unmask(request) == shares
    other = UnmaskRequest(SESSION, (0, 1, 2, 3, 4), (5,))
    aborts("second-request", lambda: ClientSession.from_bytes(client.to_bytes()).unmask(other))


def test_a_restarted_client_does_not_mask_another_input():
    client, delivery = at(SessionStep.INPUTS)
    first = client.mask(delivery, random_ring(client.terms, 0))
    again = ClientSession.from_bytes(client.to_bytes())
    assert again.mask(delivery, random_ring(client.terms, 0)) == first
    aborts("second-request", lambda: again.mask(delivery, random_ring(client.terms, 1)))


def test_one_that_has_left_stays_away_after_a_restart_and_its_secrets_are_gone():
    client, request = at(SessionStep.UNMASKING)
    aborts("listed-dead", lambda: client.unmask(UnmaskRequest(SESSION, (1, 2, 3, 4, 5), (0,))))
    state = json.loads(client.to_bytes())
    assert set(state) == {"terms", "client", "aborted"}
    again = ClientSession.from_bytes(client.to_bytes())
    aborts("listed-dead", lambda: again.unmask(request))
    aborts("listed-dead", again.advertise)


@pytest.mark.parametrize("damage", ["", "{}", "[]", "null", '{"terms": "{}", "client": 0}'])
def test_a_damaged_state_is_refused(damage):
    with pytest.raises(BadMessage, match="not a saved session"):
        ClientSession.from_bytes(damage.encode())


def test_a_state_with_an_altered_part_is_refused():
    client, _ = at(SessionStep.UNMASKING)
    state = json.loads(client.to_bytes())
    for part in ("roster", "delivery"):
        flipped = state[part][:-1] + ("0" if state[part][-1] != "0" else "1")
        with pytest.raises(BadMessage, match="not a saved session"):
            ClientSession.from_bytes(json.dumps(state | {part: flipped}).encode())
    short = state["secrets"] | {"seed": "00"}
    with pytest.raises(BadMessage, match="not a saved session"):
        ClientSession.from_bytes(json.dumps(state | {"secrets": short}).encode())


def test_secrets_do_not_show_in_the_representation():
    client, _ = at(SessionStep.UNMASKING)
    seed = json.loads(client.to_bytes())["secrets"]["seed"]
    assert seed not in repr(client) + repr(client._secrets) + repr(client._held)
