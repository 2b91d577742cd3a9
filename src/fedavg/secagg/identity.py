"""Who signs what, in sessions that must withstand an active server.

A device's key is valid if the authority of the fleet's owner, which is not the server, has signed it: that signature is
the key's voucher. Devices pin the authority's public key, so a server can neither invent peers nor swap their keys.
"""

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

#: Bytes of a raw Ed25519 public key, and of a signature.
IDENTITY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_VOUCHER: Final = b"fedavg device key 1"


@dataclass(frozen=True)
class Signing:
    """The key that a client signs with, the authority's signature on it, and the authority's own public key (raw)."""

    key: Ed25519PrivateKey
    voucher: bytes
    authority: bytes

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()


def vouch(authority: Ed25519PrivateKey, device: bytes) -> bytes:
    """The authority's signature that this public key (raw Ed25519) belongs to a device of its fleet."""
    return authority.sign(_VOUCHER + device)


def vouched(authority: bytes, device: bytes, voucher: bytes) -> bool:
    """Whether the authority has vouched for the device's key."""
    return len(device) == IDENTITY_BYTES and verified(authority, voucher, _VOUCHER + device)


def verified(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether the holder of a public key has signed the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
