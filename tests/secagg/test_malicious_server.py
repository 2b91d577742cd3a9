"""A server that wants both secrets of one client, which would open its input. It tries all that the messages allow."""

from itertools import product

import numpy as np
import pytest
from parties import party, plain_sum, random_ring, small_terms

from fedavg.secagg import ClientAborted, ClientSession, SessionStep, masks
from fedavg.secagg.field import reconstruct
from fedavg.secagg.messages import SurvivorSet, UnmaskRequest

VICTIM = 0


def shares_of(owner, answers):
    """What the server has gathered about one client: shares of its seed and of its masking key, by holder."""
    seeds = {a.client: dict(a.seeds)[owner] for a in answers if owner in dict(a.seeds)}
    keys = {a.client: dict(a.keys)[owner] for a in answers if owner in dict(a.keys)}
    return seeds, keys


def ask(client, survivors, dropped, endorsements=()):
    try:
        return [client.unmask(UnmaskRequest(client.terms.session, survivors, dropped, endorsements))]
    except ClientAborted:
        return []


def others(session):
    return [client for c, client in session.clients.items() if c != VICTIM]


def test_asking_each_client_for_both_in_turn():
    session = party(small_terms(9)).until(SessionStep.UNMASKING)  # t = 7
    everyone = tuple(range(9))
    answers = [a for client in others(session) for a in ask(client, everyone, ())]
    answers += [a for client in others(session) for a in ask(client, everyone[1:], (VICTIM,))]
    seeds, keys = shares_of(VICTIM, answers)
    assert len(seeds) == 8
    assert keys == {}


def test_asking_again_after_everyone_was_restarted():
    session = party(small_terms(9)).until(SessionStep.UNMASKING)
    everyone = tuple(range(9))
    answers = [a for client in others(session) for a in ask(client, everyone, ())]
    restarted = [ClientSession.from_bytes(client.to_bytes()) for client in others(session)]
    answers += [a for client in restarted for a in ask(client, everyone[1:], (VICTIM,))]
    seeds, keys = shares_of(VICTIM, answers)
    assert len(seeds) == 8
    assert keys == {}


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 9, 10])
@pytest.mark.parametrize("least", [False, True])
def test_telling_half_of_them_that_the_victim_lives_and_the_other_half_that_it_died(clients, least):
    """However it splits them, one of the two secrets stays short of t shares, even at the lowest threshold allowed."""
    terms = small_terms(clients, threshold=clients // 2 + 1 if least else None)
    threshold, everyone = terms.topology.threshold, tuple(range(clients))
    session = party(terms).until(SessionStep.UNMASKING)
    saved = [client.to_bytes() for client in others(session)]
    for told_alive in range(clients):
        fresh = [ClientSession.from_bytes(state) for state in saved]
        answers = ask(ClientSession.from_bytes(session.clients[VICTIM].to_bytes()), everyone, ())
        answers += [a for client in fresh[:told_alive] for a in ask(client, everyone, ())]
        answers += [a for client in fresh[told_alive:] for a in ask(client, everyone[1:], (VICTIM,))]
        seeds, keys = shares_of(VICTIM, answers)
        assert not seeds.keys() & keys.keys()
        assert not (len(seeds) >= threshold and len(keys) >= threshold)


def test_what_both_secrets_would_have_shown():
    """The attack is real: with both, the server opens the victim's input. (Here the test takes them itself.)"""
    session = party(small_terms(5)).until(SessionStep.INPUTS)
    masked = {c: session.reply(c) for c in session.clients}
    victim, terms = session.clients[VICTIM], session.server.terms
    held = {c: session.clients[c]._held[VICTIM] for c in session.clients}
    threshold = terms.topology.threshold
    seed = reconstruct({c: held[c].seed for c in range(threshold)})
    private = masks.private_key(reconstruct({c: held[c].key for c in range(threshold)}))
    opened = np.frombuffer(masked[VICTIM].vector, terms.encoding.dtype).copy()
    agreed = {c: masks.agree(private, advert.mask_key) for c, advert in victim._peers.items()}
    keys = [masks.pairwise_key(secret, terms.digest, VICTIM, c) for c, secret in agreed.items()]
    assert all(masks.sign(VICTIM, c) == 1 for c in agreed)
    masks.apply_masks(opened, [], [masks.self_key(seed, terms.digest, VICTIM), *keys])
    assert np.array_equal(opened, random_ring(terms, VICTIM))
    # Either alone does not do.
    alone = np.frombuffer(masked[VICTIM].vector, terms.encoding.dtype).copy()
    masks.apply_masks(alone, [], keys)
    assert not np.array_equal(alone, random_ring(terms, VICTIM))


def test_signed_clients_can_not_be_told_different_things_at_all():
    """With the consistency round a split leaves at least one side without t endorsements: it gives nothing away."""
    session = party(small_terms(9, signed=True)).until(SessionStep.ENDORSEMENTS)  # t = 7
    terms, everyone = session.server.terms, tuple(range(9))
    sets = {"alive": (everyone, ()), "dead": (everyone[1:], (VICTIM,))}
    told = {client: "alive" if client.client < 5 else "dead" for client in session.clients.values()}
    endorsed = {"alive": [], "dead": []}
    for client, view in told.items():
        endorsed[view].append(client.endorse(SurvivorSet(terms.session, *sets[view])))
    answers = [
        a for client, view in product(others(session), sets) for a in ask(client, *sets[view], tuple(endorsed[view]))
    ]
    assert answers == []


@pytest.mark.parametrize("near", [5, 12, 19, 26])
def test_nor_can_those_of_a_sparse_graph(near):
    """The server knows the ring and tells those nearest to the victim one thing, all others another."""
    terms = small_terms(60, sparse=(0.05, 0.1), signed=True)
    session = party(terms).until(SessionStep.ENDORSEMENTS)
    everyone, links = tuple(range(60)), {c: set(client._peers) for c, client in session.clients.items()}
    closest = sorted(links[VICTIM], key=lambda c: -len(links[c] & links[VICTIM]))[:near]
    sets = {True: (everyone, ()), False: (everyone[1:], (VICTIM,))}
    told = {c: c in (VICTIM, *closest) for c in everyone}
    signed = {c: session.clients[c].endorse(SurvivorSet(terms.session, *sets[told[c]])) for c in everyone}
    answers = []
    for c, client in session.clients.items():
        same = tuple(signed[peer] for peer in sorted({c, *links[c]}) if told[peer] is told[c])
        answers += ask(client, *sets[told[c]], tuple(e for e in same if told[c] or e.client != VICTIM))
    seeds, keys = shares_of(VICTIM, answers)
    assert not (len(seeds) >= terms.topology.threshold and len(keys) >= terms.topology.threshold)
    assert not seeds.keys() & keys.keys()


def test_an_honest_round_after_all_that_still_gives_the_sum():
    session = party(small_terms(9, signed=True)).until(SessionStep.UNMASKING, {SessionStep.INPUTS: [VICTIM]})
    assert np.array_equal(session.phase().ring, plain_sum(session.server.terms, range(1, 9)))


def test_the_masked_inputs_of_some_do_not_add_up_to_their_sum():
    """Leaving out one survivor's input leaves its pairwise masks standing: the server gets the whole sum or noise."""
    session = party(small_terms(5)).until(SessionStep.INPUTS)
    masked = [np.frombuffer(session.reply(c).vector, "<u4") for c in range(5)]
    terms = session.server.terms
    own = np.zeros(terms.encoding.length, terms.encoding.dtype)
    for c in range(4):
        seed = session.clients[c]._secrets.seed
        masks.apply_masks(own, [masks.self_key(seed, terms.digest, c)], [])
    assert not np.array_equal(sum(masked[:4]) - own, plain_sum(terms, range(4)))
    masks.apply_masks(own, [masks.self_key(session.clients[4]._secrets.seed, terms.digest, 4)], [])
    assert np.array_equal(sum(masked) - own, plain_sum(terms, range(5)))
