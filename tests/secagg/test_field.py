"""Shamir's sharing, against sums done by hand."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.secagg import SecAggError
from fedavg.secagg.field import PRIME, point, reconstruct, share

KEY = bytes(range(32))
secrets_32 = st.binary(min_size=32, max_size=32)


def test_the_modulus_is_the_first_prime_above_every_secret():
    def probably_prime(n):  # Miller and Rabin
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
            x = pow(base, odd, n)
            if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
                return False
        return True

    assert probably_prime(PRIME)
    assert not any(probably_prime(n) for n in range(2**256 + 1, PRIME, 2))


def test_a_line_through_two_points_by_hand():
    secret = (1234).to_bytes(32, "big")
    at_1, at_2, at_5 = share(secret, 2, [0, 1, 4], KEY)
    assert (2 * at_1 - at_2) % PRIME == 1234  # f(0) = 2 f(1) - f(2)
    assert (at_5 - at_1) % PRIME == 4 * (at_2 - at_1) % PRIME  # the slope is the same everywhere
    assert at_1 not in (1234, at_2)


def test_a_parabola_from_three_points_by_hand():
    # f(x) = 7 + 2x + x^2: f(1) = 10, f(2) = 15, f(3) = 22
    assert reconstruct({0: 10, 1: 15, 2: 22}) == (7).to_bytes(32, "big")


@given(secrets_32, st.data())
def test_any_t_shares_give_the_secret_and_fewer_fit_every_secret(secret, data):
    holders = sorted(data.draw(st.sets(st.integers(0, 2**32 - 1), min_size=2, max_size=12)))
    threshold = data.draw(st.integers(2, len(holders)))
    shares = dict(zip(holders, share(secret, threshold, holders, KEY), strict=True))
    chosen = data.draw(st.permutations(holders))[:threshold]
    assert reconstruct({holder: shares[holder] for holder in chosen}) == secret
    # t - 1 shares and any other value at the last point belong to some other polynomial: they rule no secret out.
    forged = {holder: shares[holder] for holder in chosen} | {chosen[0]: (shares[chosen[0]] + 1) % PRIME}
    with suppress(SecAggError):  # the other secret may be one of the 297 that 32 bytes do not hold
        assert reconstruct(forged) != secret


def test_the_largest_secret_survives():
    secret = b"\xff" * 32
    assert reconstruct(dict(enumerate(share(secret, 3, [0, 1, 2], KEY)))) == secret


def test_a_value_that_is_no_secret_is_refused():
    with pytest.raises(SecAggError, match="32-byte") as caught:
        reconstruct({0: PRIME - 1, 1: PRIME - 1})  # the constant polynomial PRIME - 1 >= 2^256
    assert caught.value.reason == "bad-share"


def test_other_keys_give_other_polynomials_and_no_point_is_zero():
    assert share(bytes(32), 2, [0], KEY) != share(bytes(32), 2, [0], KEY[::-1])
    assert point(0) == 1
