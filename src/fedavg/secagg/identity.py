"""Who signs what, in sessions that must bear an active server."""

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@dataclass(frozen=True)
class Identity:
    """The key that a client signs with, and the others' public keys (raw Ed25519), which the caller vouches for."""

    key: Ed25519PrivateKey
    peers: Mapping[int, bytes]


def verified(identities: Mapping[int, bytes], client: int, signature: bytes, statement: bytes) -> bool:
    """Whether the client's identity, among these public keys, has signed the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(identities[client]).verify(signature, statement)
    except (InvalidSignature, ValueError, KeyError):
        return False
    return True
