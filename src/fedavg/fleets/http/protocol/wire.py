"""The update frame: what a client uploads, and the one place that checks it before it is used.

    "FAVG" | u8 version | u32 LE length of the header | header: strict JSON | payload: the codec's bytes

Every byte is hostile until checked (docs/protocol.md). A frame is decoded whole or refused with a reason; cheap checks
come first, every length is compared with the bytes that are there before it is used, and only numbers come out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from math import isfinite
from struct import Struct
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs import Codec
from fedavg.errors import FedAvgError, NotFinite, PlanError
from fedavg.fleets.http.protocol.messages import (
    ATTEMPT,
    METRICS,
    NUMBERS,
    PLAN_DIGEST,
    ROUND,
    SHA256,
)
from fedavg.fleets.http.protocol.strict import (
    Integer,
    MessageRefused,
    Number,
    Text,
    dump,
    item,
    parse,
)

MAGIC: Final = b"FAVG"
VERSION: Final = 1
MAX_HEADER: Final = 16 * 1024
#: The smallest weight of an update: a mean with weights near zero is unbounded.
MIN_WEIGHT: Final = 2.0**-20
_PREFIX: Final = Struct("<4sBI")


class UpdateFault(StrEnum):
    """Why an update is refused: a closed set, in the order of the checks."""

    TRUNCATED = "truncated"
    BAD_MAGIC = "bad-magic"
    BAD_VERSION = "bad-version"
    HEADER_TOO_LARGE = "header-too-large"
    BAD_HEADER = "bad-header"
    BAD_WEIGHT = "bad-weight"
    BAD_METRICS = "bad-metrics"
    WRONG_PLAN = "wrong-plan"
    WRONG_ROUND = "wrong-round"
    WRONG_MODEL = "wrong-model"
    WRONG_CODEC = "wrong-codec"
    WRONG_SHAPE = "wrong-shape"
    WRONG_LENGTH = "wrong-length"
    WRONG_DIGEST = "wrong-digest"
    BAD_PAYLOAD = "bad-payload"
    NOT_FINITE = "not-finite"
    NORM_EXCEEDED = "norm-exceeded"
    SHARE_EXCEEDED = "share-exceeded"


class UpdateRefused(FedAvgError):
    """An uploaded update is not what was asked for; `reason` is for programs, the message for people."""

    def __init__(self, reason: UpdateFault, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class UpdateHeader:
    """What a client says about its update."""

    plan: str = item(PLAN_DIGEST, "the plan's digest")
    round: int = item(ROUND, "the round of the offer")
    attempt: int = item(ATTEMPT, "the attempt of the offer")
    model: str = item(SHA256, "the model that it was trained from")
    codec: str = item(Text("[!-~]", 1, 128, "visible ASCII without spaces"), "how the payload is encoded")
    numbers: int = item(NUMBERS, "P, how many numbers the vector has")
    weight: float = item(Number(0, 1e300, above=True), "n_k, how much the update counts")
    metrics: dict[str, float] = item(METRICS, "what the client measured, by name")


@dataclass(frozen=True)
class SealedHeader(UpdateHeader):
    """The header as it is sent, with the digest of its payload."""

    payload_bytes: int = item(Integer(0, 2**48), "the length of the payload")
    payload_sha256: str = item(SHA256, "the SHA-256 of the payload")


@dataclass(frozen=True)
class Expected:
    """What the server asked of the client that uploads."""

    plan: str
    round: int
    attempt: int
    model: str
    codec: Codec
    numbers: int
    max_weight: float
    #: The largest L2 norm that a vector may have, if there is a bound.
    max_norm: float | None
    #: The names of the metrics that come with an update: these, all of them, and no others.
    metrics: frozenset[str]
    #: The lowest and highest value of each; without an entry, the limits of the header apply.
    metric_bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class DecodedUpdate:
    """A checked update: the vector, shape (P,) float32, is finite and shares no memory with the frame."""

    vector: Tensor
    weight: float
    metrics: dict[str, float]


def check_names(metrics: Iterable[str]) -> None:
    """PlanError if a header cannot carry numbers under these names."""
    try:
        METRICS.check(dict.fromkeys(metrics, 0.0), "metrics")
    except MessageRefused as error:
        raise PlanError(f"what clients measure cannot be sent: {error}") from None


def max_frame_bytes(numbers: int, codec: Codec) -> int:
    """The longest frame for a model of so many numbers; a server stops reading there."""
    return _PREFIX.size + MAX_HEADER + codec.max_bytes(numbers)


def encode_update(header: UpdateHeader, payload: bytes) -> bytes:
    """The frame; raises MessageRefused for a header that could not be read back."""
    sealed = SealedHeader(**asdict(header), payload_bytes=len(payload), payload_sha256=sha256(payload).hexdigest())
    text = dump(sealed)
    return b"".join((_PREFIX.pack(MAGIC, VERSION, len(text)), text, payload))


def decode_update(frame: bytes | memoryview, expected: Expected) -> DecodedUpdate:
    """The update in a frame; raises UpdateRefused unless it is the one that was asked for."""
    header, payload = _split(memoryview(frame).cast("B"))
    _check_identity(header, expected)
    _check_claims(header, expected)
    _check_bytes(header, payload, expected)
    vector = _vector(payload, expected)
    _check_numbers(vector, expected.max_norm)
    return DecodedUpdate(vector, header.weight, header.metrics)


def _split(frame: memoryview) -> tuple[SealedHeader, memoryview]:
    if len(frame) < _PREFIX.size:
        raise UpdateRefused(UpdateFault.TRUNCATED, f"got {len(frame)} bytes; expected at least {_PREFIX.size}")
    magic, version, length = _PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise UpdateRefused(UpdateFault.BAD_MAGIC, f"the frame starts with {magic!r}; expected {MAGIC!r}")
    if version != VERSION:
        raise UpdateRefused(UpdateFault.BAD_VERSION, f"got a frame of version {version}; expected {VERSION}")
    if length > MAX_HEADER:
        raise UpdateRefused(
            UpdateFault.HEADER_TOO_LARGE, f"got a header of {length} bytes; expected at most {MAX_HEADER}"
        )
    rest = frame[_PREFIX.size :]
    if length > len(rest):
        raise UpdateRefused(UpdateFault.TRUNCATED, f"the header has {length} bytes, but only {len(rest)} are there")
    return _header(bytes(rest[:length])), rest[length:]


def _header(text: bytes) -> SealedHeader:
    try:
        return parse(SealedHeader, text, MAX_HEADER)
    except MessageRefused as error:
        culprit = (error.field or "").partition(".")[0]
        raise UpdateRefused(_CLAIMS.get(culprit, UpdateFault.BAD_HEADER), str(error)) from None


_CLAIMS: Final = {"weight": UpdateFault.BAD_WEIGHT, "metrics": UpdateFault.BAD_METRICS}


def _check_identity(header: SealedHeader, expected: Expected) -> None:
    """The frame answers this offer and no other."""
    for reason, got, wanted in (
        (UpdateFault.WRONG_PLAN, header.plan, expected.plan),
        (UpdateFault.WRONG_ROUND, (header.round, header.attempt), (expected.round, expected.attempt)),
        (UpdateFault.WRONG_MODEL, header.model, expected.model),
        (UpdateFault.WRONG_CODEC, header.codec, expected.codec.name),
        (UpdateFault.WRONG_SHAPE, header.numbers, expected.numbers),
    ):
        if got != wanted:
            raise UpdateRefused(reason, f"got {got}; expected {wanted}")


def _check_claims(header: SealedHeader, expected: Expected) -> None:
    if not MIN_WEIGHT <= header.weight <= expected.max_weight:
        bounds = f"{MIN_WEIGHT:g} to {expected.max_weight:g}"
        raise UpdateRefused(UpdateFault.BAD_WEIGHT, f"got {header.weight:g}; expected {bounds}")
    if header.metrics.keys() != expected.metrics:
        got, wanted = sorted(header.metrics), sorted(expected.metrics)
        raise UpdateRefused(UpdateFault.BAD_METRICS, f"got {got}; expected {wanted}")
    for name, (low, high) in expected.metric_bounds.items():
        if name in header.metrics and not low <= header.metrics[name] <= high:
            said = f"{name} is {header.metrics[name]:g}; expected {low:g} to {high:g}"
            raise UpdateRefused(UpdateFault.BAD_METRICS, said)


def _check_bytes(header: SealedHeader, payload: memoryview, expected: Expected) -> None:
    most = expected.codec.max_bytes(expected.numbers)
    if len(payload) < header.payload_bytes:
        raise UpdateRefused(
            UpdateFault.TRUNCATED, f"the payload has {header.payload_bytes} bytes, but only {len(payload)} are there"
        )
    if len(payload) > header.payload_bytes or len(payload) > most:
        wanted = f"{header.payload_bytes}, and at most {most}"
        raise UpdateRefused(UpdateFault.WRONG_LENGTH, f"got a payload of {len(payload)} bytes; expected {wanted}")
    if sha256(payload).hexdigest() != header.payload_sha256:
        raise UpdateRefused(UpdateFault.WRONG_DIGEST, "the payload does not have the SHA-256 that its header says")


def _vector(payload: memoryview, expected: Expected) -> Tensor:
    try:
        with np.errstate(all="ignore"):  # 0 * infinity is refused below; it need not fill the log with warnings
            vector = expected.codec.decode(payload, expected.numbers)
    except NotFinite as error:
        raise UpdateRefused(UpdateFault.NOT_FINITE, str(error)) from None
    except Exception as error:  # any failure of a codec on untrusted bytes is the sender's fault
        raise UpdateRefused(UpdateFault.BAD_PAYLOAD, f"not a {expected.codec.name} payload: {error}") from None
    if vector.shape != (expected.numbers,) or vector.dtype != torch.float32:
        detail = f"got {tuple(vector.shape)} {vector.dtype}; expected ({expected.numbers},) float32"
        raise UpdateRefused(UpdateFault.BAD_PAYLOAD, detail)
    return vector


def _check_numbers(vector: Tensor, max_norm: float | None) -> None:
    if not all(isfinite(float(end)) for end in vector.aminmax()):  # one pass: both ends are NaN if any number is
        raise UpdateRefused(UpdateFault.NOT_FINITE, "the vector holds NaN or infinity; expected finite numbers")
    if max_norm is None:
        return
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))  # squares of float32 overflow float32
    if norm > max_norm:
        raise UpdateRefused(UpdateFault.NORM_EXCEEDED, f"the vector's norm is {norm:g}; expected at most {max_norm:g}")
