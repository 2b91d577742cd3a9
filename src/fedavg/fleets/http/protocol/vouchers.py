"""The authority that vouches for devices' keys: its files, and the two messages to ask it for a voucher.

The authority belongs to the fleet's owner and is not the server. It signs devices' public keys; devices pin the
authority's key, so that no server can put invented peers into a session of secure aggregation.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from fedavg.files import write_atomically
from fedavg.fleets.http.protocol.keys import ClientKey, KeyFileError
from fedavg.fleets.http.protocol.messages import TOKEN
from fedavg.fleets.http.protocol.strict import Key, Text, item
from fedavg.secagg.identity import SIGNATURE_BYTES, verified

#: The path at which an authority that runs as a process answers.
PATH: Final = "/v1/vouch"
_SIGNATURE: Final = Text("[A-Za-z0-9+/=]", 88, 88, "64 bytes in base64")
_PROOF: Final = b"fedavg vouch for me 1"


@dataclass(frozen=True)
class VouchRequest:
    """POST /v1/vouch: a device asks the authority to vouch for its key, and shows that it has the private half."""

    token: str = item(TOKEN, "the authority's own token, as its owner gave it")
    key: str = item(Key(), "the device's Ed25519 public key, base64")
    proof: str = item(_SIGNATURE, "the key's signature on itself and the token, base64")


@dataclass(frozen=True)
class Vouched:
    """The answer to VouchRequest."""

    voucher: str = item(_SIGNATURE, "the authority's signature on the key, base64")


def request_for(key: ClientKey, token: str) -> VouchRequest:
    proof = key.private.sign(_statement(key.public, token))
    return VouchRequest(token, b64encode(key.public).decode(), b64encode(proof).decode())


def proven(request: VouchRequest) -> bytes | None:
    """The key that the request is for; None if its sender has not proved that it holds the private half."""
    public = b64decode(request.key)
    try:
        proof = b64decode(request.proof, validate=True)
    except Base64Error:
        return None
    return public if verified(public, proof, _statement(public, request.token)) else None


def _statement(public: bytes, token: str) -> bytes:
    return _PROOF + public + sha256(token.encode()).digest()


def save_public(path: Path, public: bytes) -> None:
    """A public key as PEM, for everybody to read."""
    key = Ed25519PublicKey.from_public_bytes(public)
    write_atomically(path, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def load_public(path: Path) -> bytes:
    """The raw Ed25519 public key of a PEM file."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise KeyFileError(f"cannot read the public key {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path} holds no public key; expected PEM, such as authority.pub or device.pub") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path} holds a key of another kind ({type(key).__name__}); expected Ed25519")
    return key.public_bytes_raw()


def voucher_text(voucher: bytes) -> str:
    return b64encode(voucher).decode() + "\n"


def parse_voucher(text: str | bytes) -> bytes | None:
    """The signature in a voucher file; None if the text is not a voucher."""
    try:
        voucher = b64decode(text.strip(), validate=True)
    except (Base64Error, ValueError):
        return None
    return voucher if len(voucher) == SIGNATURE_BYTES else None
