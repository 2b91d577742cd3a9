"""Messages there and back; whatever is cut, stretched or mislabelled is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.secagg import BadMessage, parse
from fedavg.secagg.field import PRIME
from fedavg.secagg.messages import (
    SEALED_BYTES,
    Endorsement,
    KeyAdvert,
    MaskedInput,
    Roster,
    SealedShares,
    ShareDelivery,
    SurvivorSet,
    UnmaskRequest,
    UnmaskShares,
)

SESSION = b"sixteen bytes ok"


def exactly(size):
    return st.binary(min_size=size, max_size=size)


def many(items):
    return st.lists(items, max_size=4).map(tuple)


ids = st.integers(0, 2**32 - 1)
session = st.just(SESSION)
keys = (session, ids, exactly(32), exactly(32), exactly(32))
adverts = st.one_of(
    st.builds(KeyAdvert, *keys), st.builds(KeyAdvert, *keys, exactly(32), exactly(64), exactly(64))
)  # unsigned, or with an identity, its voucher and a signature
endorsements = st.builds(Endorsement, session, ids, exactly(64))
sealed = many(st.tuples(ids, exactly(SEALED_BYTES)))
shares = many(st.tuples(ids, st.integers(0, PRIME - 1)))
messages = st.one_of(
    adverts,
    endorsements,
    st.builds(Roster, session, many(adverts)),
    st.builds(SealedShares, session, ids, sealed),
    st.builds(ShareDelivery, session, sealed),
    st.builds(MaskedInput, session, ids, st.binary(max_size=40)),
    st.builds(SurvivorSet, session, many(ids), many(ids)),
    st.builds(UnmaskRequest, session, many(ids), many(ids), many(endorsements)),
    st.builds(UnmaskShares, session, ids, shares, shares),
)


@given(messages)
def test_there_and_back(message):
    data = message.to_bytes()
    assert parse(data) == type(message).from_bytes(data) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_stretched_is_refused(message, data):
    whole = message.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    if isinstance(message, MaskedInput):  # its vector is as long as it is; the server knows how long it must be
        cut = min(cut, 24)
    else:
        with pytest.raises(BadMessage) as caught:
            parse(whole + b"\0")
        assert caught.value.reason == "malformed"
    with pytest.raises(BadMessage) as caught:
        parse(whole[:cut])
    assert caught.value.reason == "malformed"


@given(st.binary(max_size=200), st.integers(0, 255))
def test_noise_is_a_message_or_refused_and_never_anything_else(noise, kind):
    for data in (noise, b"FSA1" + bytes([kind]) + SESSION + noise):
        with suppress(BadMessage):
            assert parse(data).to_bytes() == data  # one message has one form


def test_a_count_beyond_the_message_is_refused_before_anything_is_made():
    body = b"FSA1" + bytes([ShareDelivery.KIND]) + SESSION + b"\xff\xff\xff\xff"
    with pytest.raises(BadMessage, match="announces 4294967295 items"):
        parse(body)
    survivors = b"FSA1" + bytes([SurvivorSet.KIND]) + SESSION + b"\xff\xff\xff\xff"
    with pytest.raises(BadMessage, match="ends after"):
        parse(survivors)


def test_a_share_outside_the_field_is_refused():
    good = UnmaskShares(SESSION, 1, ((2, PRIME - 1),), ()).to_bytes()
    assert parse(good)
    with pytest.raises(BadMessage, match="outside the field"):
        parse(UnmaskShares(SESSION, 1, ((2, PRIME),), ()).to_bytes())


def test_one_kind_is_not_taken_for_another():
    with pytest.raises(BadMessage, match="begin as a Roster"):
        Roster.from_bytes(ShareDelivery(SESSION, ()).to_bytes())


def test_statements_tell_lists_apart():
    one, other = SurvivorSet(SESSION, (1, 2), (3,)), SurvivorSet(SESSION, (1,), (2, 3))
    assert one.statement(bytes(32)) != other.statement(bytes(32))
