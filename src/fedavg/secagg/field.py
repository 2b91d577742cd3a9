"""Shamir's t-of-n sharing of 32-byte secrets, in the smallest prime field that holds them whole.

A secret is the value at 0 of a random polynomial of degree t - 1; a client's share is the value at its own point.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from secrets import SystemRandom
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedavg.secagg.errors import Fault, SecAggError

#: The smallest prime above 2^256, so that no secret has to be folded or cut.
PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
#: Keystream bytes per coefficient: 16 more than the prime has, so that the remainder is uniform to within 2^-127.
_COEFFICIENT_BYTES: Final = 48

#: Steps between reductions modulo the prime: a reduction costs more than growing by 32 bits a step. Chosen by speed.
_STRIDE: Final = 8
#: Sets of shares to try before a secret counts as lost: enough for one or a few wrong shares among 100 clients.
TRIES: Final = 300


def point(client: int) -> int:
    """The point of a client's share; never 0, where the secret itself is."""
    return client + 1


def share(secret: bytes, threshold: int, clients: Sequence[int], key: bytes) -> list[int]:
    """One share per client. The polynomial follows from the key alone, so sharing again gives the same shares."""
    coefficients = [*_coefficients(key, threshold - 1), int.from_bytes(secret, "big")]
    return [_evaluate(coefficients, point(client)) for client in clients]


def reconstruct(shares: Mapping[int, int]) -> bytes:
    """The secret, from exactly t shares by client."""
    clients = tuple(sorted(shares))
    value = sum(weight * shares[client] for client, weight in zip(clients, _lagrange(clients), strict=True)) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise SecAggError(Fault.BAD_SHARE, f"the shares of clients {clients} do not belong to one 32-byte secret")
    return value.to_bytes(SECRET_BYTES, "big")


def _coefficients(key: bytes, count: int) -> list[int]:
    keystream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count * _COEFFICIENT_BYTES))
    pieces = (keystream[i : i + _COEFFICIENT_BYTES] for i in range(0, len(keystream), _COEFFICIENT_BYTES))
    return [int.from_bytes(piece, "big") % PRIME for piece in pieces]


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for start in range(0, len(coefficients), _STRIDE):  # Horner: the highest power comes first, the secret last
        for coefficient in coefficients[start : start + _STRIDE]:
            value = value * x + coefficient
        value %= PRIME
    return value


@lru_cache(maxsize=256)
def _lagrange(clients: tuple[int, ...]) -> tuple[int, ...]:
    """The weights that give the value at 0; cached, because in a complete graph all secrets have the same holders."""
    points = [point(client) for client in clients]
    weights = []
    for x in points:
        numerator = denominator = 1
        for other in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return tuple(weights)


def fitting(shares: Mapping[int, int], holders: Sequence[int], fits: Callable[[bytes], bool]) -> bytes | None:
    """The secret from the shares of these holders; None if they give no valid secret, or one that does not fit."""
    try:
        secret = reconstruct({holder: shares[holder] for holder in holders})
    except SecAggError:
        return None
    return secret if fits(secret) else None


def choices(holders: list[int], count: int) -> Iterator[list[int]]:
    """Sets of this many holders: the first ones, then random ones."""
    if len(holders) < count:
        return
    yield holders[:count]
    for _ in range(TRIES if len(holders) > count else 0):
        yield sorted(SystemRandom().sample(holders, count))
