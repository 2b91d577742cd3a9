"""Keys and masks. Every key is HKDF-SHA256 over full entropy, bound to the terms (session, round, model) and the pair.

A mask is the AES-256-CTR keystream of such a key, read as ring elements. Keys for masking and keys for sealing shares
come from different X25519 key pairs.
"""

from collections.abc import Sequence
from struct import pack
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
#: Bytes of keystream generated at a time: they fit in the L2 cache with the part of the ring that they are added to.
_BLOCK_BYTES: Final = 1 << 17
_ZEROS: Final = bytes(_BLOCK_BYTES)
#: Ciphers kept open at a time; each holds about a kilobyte.
_BATCH: Final = 512


def sha256(*parts: bytes) -> bytes:
    digest = Hash(SHA256())
    for part in parts:
        digest.update(part)
    return digest.finalize()


def private_key(raw: bytes) -> X25519PrivateKey:
    """Load a private key once: loading costs as much as a key agreement."""
    return X25519PrivateKey.from_private_bytes(raw)


def public_key(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, peer: bytes) -> bytes:
    """The shared secret of two key pairs, from either side. ValueError if the peer's public key is degenerate."""
    return private.exchange(X25519PublicKey.from_public_bytes(peer))


def usable(peer: bytes) -> bool:
    """Whether a key agreement with this public key is possible: it is not one of the few degenerate ones."""
    try:
        agree(X25519PrivateKey.generate(), peer)
    except ValueError:
        return False
    return True


def pairwise_key(agreed: bytes, terms: bytes, one: int, other: int) -> bytes:
    """The key of the mask that two clients share; the same for both."""
    return _derive(agreed, terms, b"pairwise mask", *sorted((one, other)))


def sealing_key(agreed: bytes, terms: bytes, sender: int, recipient: int) -> bytes:
    """The key that seals one client's shares for another. It differs by direction and seals one message only."""
    return _derive(agreed, terms, b"sealed shares", sender, recipient)


def self_key(seed: bytes, terms: bytes, client: int) -> bytes:
    """The key of a client's own mask."""
    return _derive(seed, terms, b"self mask", client)


def commitment(seed: bytes, terms: bytes, client: int) -> bytes:
    """Binds a client to its seed without revealing it, so that a wrong reconstruction is noticed."""
    return _derive(seed, terms, b"seed commitment", client)


def sharing_key(seed: bytes, terms: bytes, what: bytes) -> bytes:
    """The key from which the coefficients of a client's sharing polynomial are derived."""
    return _derive(seed, terms, b"polynomial of " + what)


def sign(one: int, other: int) -> int:
    """Whether the first of a pair adds (1) or subtracts (-1) their mask, which cancels in their sum."""
    return 1 if one < other else -1


def apply_masks(ring: np.ndarray, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """Add and subtract, in place, the masks of these keys."""
    signed = [(key, np.add) for key in added] + [(key, np.subtract) for key in subtracted]
    for start in range(0, len(signed), _BATCH):
        _apply_batch(ring, [(_keystream(key), operation) for key, operation in signed[start : start + _BATCH]])


def _apply_batch(ring: np.ndarray, streams: list[tuple[CipherContext, np.ufunc]]) -> None:
    """Block by block with all masks per block, so that each block of the ring is fetched from memory once."""
    scratch = np.empty(_BLOCK_BYTES + 16, np.uint8)  # the cipher requires one spare block
    elements = _BLOCK_BYTES // ring.itemsize
    for start in range(0, len(ring), elements):
        block = ring[start : start + elements]
        zeros = memoryview(_ZEROS)[: block.nbytes]
        mask = scratch[: block.nbytes].view(ring.dtype)
        for stream, operation in streams:
            stream.update_into(zeros, scratch.data)
            operation(block, mask, out=block)


def _keystream(key: bytes) -> CipherContext:
    # The counter may start at 0 because no key is ever used for two streams.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _derive(secret: bytes, terms: bytes, purpose: bytes, *clients: int) -> bytes:
    info = b"fedavg secagg 1: " + purpose + pack(f">{len(clients)}I", *clients)
    return HKDF(SHA256(), KEY_BYTES, salt=terms, info=info).derive(secret)
