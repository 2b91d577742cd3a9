"""What a server takes, refuses and gives up over."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parties import make_identities, party, plain_sum, small_terms

from fedavg.secagg import (
    BadMessage,
    ClientSession,
    SecAggError,
    ServerSession,
    SessionAbandoned,
    SessionStep,
    TermsError,
)
from fedavg.secagg.field import PRIME
from fedavg.secagg.messages import Endorsement, KeyAdvert, MaskedInput, SealedShares, UnmaskShares


def refused(reason, server, message):
    """The message is not taken, nothing changes."""
    awaited, phase = server.awaited, server.phase
    with pytest.raises(BadMessage) as caught:
        server.receive(message)
    assert caught.value.reason == reason
    assert (server.awaited, server.phase) == (awaited, phase)


def test_every_phase_refuses_duplicates_strangers_other_sessions_and_other_kinds():
    session = party(small_terms(5, signed=True))
    server = session.server
    silent = SealedShares(server.terms.session, 4, ())
    while server.phase < SessionStep.OVER:
        first = session.reply(0)
        server.receive(first)
        assert 0 not in server.awaited
        refused("duplicate", server, first)
        refused("unknown-client", server, replace(session.reply(1), client=99))
        refused("wrong-session", server, replace(session.reply(1), session=bytes(16)))
        if server.phase is not SessionStep.SHARES:
            refused("out-of-turn", server, silent)
        result = session.phase()
    refused("out-of-turn", server, silent)
    assert np.array_equal(result.ring, plain_sum(server.terms, range(5)))


def test_one_that_dropped_out_is_not_taken_back():
    session = party(small_terms(5)).until(SessionStep.INPUTS, {SessionStep.SHARES: [4]})
    session.server.receive(session.reply(0))
    refused("already-dead", session.server, MaskedInput(session.server.terms.session, 4, b""))


def test_a_key_that_is_in_use_or_degenerate_is_refused():
    session = party(small_terms(5))
    first, second = session.reply(0), session.reply(1)
    session.server.receive(first)
    for bad in (
        replace(second, mask_key=first.mask_key),
        replace(second, share_key=first.mask_key),
        replace(second, share_key=second.mask_key),
        replace(second, share_key=bytes(32)),
        replace(second, mask_key=b"\1" + bytes(31)),
    ):
        refused("altered-keys", session.server, bad)
    session.server.receive(second)


def test_signatures_are_checked_where_the_terms_ask_for_them():
    signed, unsigned = party(small_terms(5, signed=True)), party(small_terms(5))
    refused("bad-signature", signed.server, replace(signed.reply(0), signature=b""))
    refused("bad-signature", signed.server, replace(signed.reply(0), signature=signed.reply(1).signature))
    refused("bad-signature", unsigned.server, replace(unsigned.reply(0), signature=bytes(64)))
    signed.until(SessionStep.ENDORSEMENTS)
    refused("bad-signature", signed.server, Endorsement(signed.server.terms.session, 0, bytes(64)))


def test_shares_for_others_than_the_neighbours_are_refused():
    session = party(small_terms(5)).until(SessionStep.SHARES)
    good = session.reply(0)
    for sealed in (good.sealed[1:], (*good.sealed, good.sealed[0]), ((0, good.sealed[0][1]), *good.sealed[1:])):
        refused("bad-share", session.server, replace(good, sealed=sealed))


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v + b"\0", lambda v: b""])
def test_an_input_of_another_length_is_refused(change):
    session = party(small_terms(5)).until(SessionStep.INPUTS)
    good = session.reply(0)
    refused("malformed", session.server, replace(good, vector=change(good.vector)))


def test_shares_of_the_other_kind_are_refused_even_if_a_client_offers_them():
    session = party(small_terms(6)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [5]})
    good = session.reply(0)
    for bad in (
        replace(good, keys=(*good.keys, (1, 7))),  # both kinds of client 1
        replace(good, seeds=good.seeds[1:]),
        replace(good, seeds=good.keys, keys=good.seeds),
        replace(good, seeds=(*good.seeds, good.seeds[-1])),
    ):
        refused("bad-share", session.server, bad)


@pytest.mark.parametrize(("kind", "owner"), [("seeds", 2), ("keys", 5)])
def test_a_wrong_share_is_noticed_and_never_ends_in_a_wrong_sum(kind, owner):
    session = party(small_terms(6)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [5]})
    good = session.reply(0)
    altered = tuple((o, (share + 1) % PRIME if o == owner else share) for o, share in getattr(good, kind))
    session.server.receive(replace(good, **{kind: altered}))
    with pytest.raises(SessionAbandoned, match=f"client.* {owner}|32-byte") as caught:
        session.phase()
    assert caught.value.reason == "bad-share"
    assert session.server.phase is SessionStep.OVER


def test_below_the_threshold_the_reason_is_clear():
    session = party(small_terms(10))
    with pytest.raises(SessionAbandoned) as caught:
        session.phase(silent=range(4))
    assert str(caught.value) == (
        "the session is abandoned in phase KEYS: 6 of 10 clients sent keys; expected at least 7"
    )
    assert caught.value.reason == "too-few"
    assert session.server.awaited == frozenset()
    with pytest.raises(SecAggError):
        session.server.advance()


def test_too_few_shares_to_unmask_with():
    session = party(small_terms(10)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [9]})
    with pytest.raises(SessionAbandoned, match="6 shares of client 0 arrived; expected 7"):
        session.phase(silent=range(6, 10))
    with pytest.raises(SecAggError, match="expected UNMASKING"):
        session.server.finish()


def test_phases_are_closed_in_their_order():
    session = party(small_terms(4))
    with pytest.raises(SecAggError, match="expected UNMASKING"):
        session.server.finish()
    session.until(SessionStep.UNMASKING)
    with pytest.raises(SecAggError, match="no phase after UNMASKING"):
        session.server.advance()


def test_the_invitation_fits_the_terms():
    with pytest.raises(TermsError, match="3 clients are invited"):
        ServerSession(small_terms(4), range(3))
    with pytest.raises(TermsError, match="authority"):
        ServerSession(small_terms(4, signed=True), range(4))
    with pytest.raises(TermsError, match="authority"):
        ServerSession(small_terms(4), range(4), make_identities(range(4))[0].authority)


def test_a_sparse_client_hears_only_of_its_neighbours():
    terms = small_terms(60, sparse=(0.05, 0.1))
    session = party(terms).until(SessionStep.SHARES)
    assert terms.topology.degree < 30
    assert all(len(roster.adverts) == terms.topology.degree + 1 for roster in session.inbox.values())
    session.until(SessionStep.INPUTS)
    assert all(len(delivery.sealed) == terms.topology.degree for delivery in session.inbox.values())


def test_a_message_that_no_client_sends_is_out_of_turn():
    session = party(small_terms(4)).until(SessionStep.SHARES)
    refused("out-of-turn", session.server, session.inbox[0])
    refused("out-of-turn", session.server, KeyAdvert(session.server.terms.session, 0, b"m" * 32, b"s" * 32, b"c" * 32))
    refused("out-of-turn", session.server, UnmaskShares(session.server.terms.session, 0, (), ()))


@pytest.mark.parametrize("terms", [{}, {"signed": True}, {"sparse": (0.05, 0.1)}], ids=str)
def test_a_server_restarted_in_the_last_phase_asks_the_same_and_gets_the_sum(terms):
    """One was lost after it had shared: its masking key is opened as well."""
    clients = 60 if "sparse" in terms else 7
    session = party(small_terms(clients, **terms)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [3]})
    saved = session.server.to_bytes()
    session.reply(0)  # went to the server that died
    server, inbox = ServerSession.from_bytes(saved, session.server._authority)
    assert {c: message.to_bytes() for c, message in inbox.items()} == {
        c: message.to_bytes() for c, message in session.inbox.items()
    }
    session.server = server
    expected = plain_sum(server.terms, set(range(clients)) - {3})
    assert np.array_equal(session.phase().ring, expected)


def test_what_is_saved_of_a_session_holds_no_single_input():
    session = party(small_terms(5, dimension=40)).until(SessionStep.INPUTS)
    inputs = [session.reply(client).vector for client in range(5)]
    session.until(SessionStep.UNMASKING)
    saved = session.server.to_bytes()
    assert not any(vector[:32] in saved for vector in inputs)
    with pytest.raises(SecAggError, match="not a saved session"):
        ServerSession.from_bytes(saved[:30])


def test_a_session_can_finish_once_every_secret_has_its_shares():
    session = party(small_terms(5, threshold=4)).until(SessionStep.UNMASKING)
    for client in range(4):
        assert not session.server.can_finish
        session.server.receive(session.reply(client))
    assert session.server.can_finish
    assert session.server.opened_by == {0, 1, 2, 3}
    with pytest.raises(SecAggError, match="before the first share"):
        session.server.to_bytes()


def test_an_identity_is_refused_that_nobody_vouched_for_or_that_is_there_already():
    session = party(small_terms(5, signed=True))
    stranger = ClientSession(session.server.terms, 1, make_identities([1], Ed25519PrivateKey.generate())[1])
    refused("not-vouched", session.server, stranger.advertise())
    session.server.receive(session.reply(0))
    double = ClientSession(session.server.terms, 1, make_identities([0])[0])
    refused("not-vouched", session.server, double.advertise())
    session.server.receive(session.reply(1))


@pytest.mark.parametrize("signed", [False, True])
def test_wrong_shares_of_a_few_do_not_keep_the_sum_closed_and_name_their_senders(signed):
    """Of 12 with t = 7, clients 0 and 4 send wrong shares of everything; client 7 was lost after it had shared."""
    session = party(small_terms(12, threshold=7, signed=signed)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [7]})
    for client in sorted(session.server.awaited):
        reply = session.reply(client)
        if client in (0, 4):
            wrong = [tuple((owner, (share + 1) % PRIME) for owner, share in part) for part in (reply.seeds, reply.keys)]
            reply = replace(reply, seeds=wrong[0], keys=wrong[1])
        session.server.receive(reply)
    aggregate = session.server.finish()
    assert np.array_equal(aggregate.ring, plain_sum(session.server.terms, set(range(12)) - {7}))
    assert session.server.liars == {0, 4}


def test_nobody_is_named_where_wrong_shares_could_be_right_ones():
    """Of 9 with t = 6 two are wrong: the sum is opened, but who they are is not beyond doubt."""
    session = party(small_terms(9, threshold=6)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [7]})
    for client in sorted(session.server.awaited):
        reply = session.reply(client)
        if client in (0, 4):
            reply = replace(reply, seeds=tuple((owner, (share + 1) % PRIME) for owner, share in reply.seeds))
        session.server.receive(reply)
    assert np.array_equal(session.server.finish().ring, plain_sum(session.server.terms, set(range(9)) - {7}))
    assert session.server.liars == frozenset()


def test_more_wrong_shares_than_can_be_spared_abandon_the_session():
    """t = 6 of 7 right ones: with two wrong there are five."""
    session = party(small_terms(7, threshold=6)).until(SessionStep.UNMASKING)
    for client in range(7):
        reply = session.reply(client)
        if client in (2, 5):
            reply = replace(reply, seeds=tuple((owner, (share + 1) % PRIME) for owner, share in reply.seeds))
        session.server.receive(reply)
    with pytest.raises(SessionAbandoned, match="do not give the secret"):
        session.server.finish()
