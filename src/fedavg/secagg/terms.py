"""What a session is about. Server and clients derive every rule from it, and its digest is bound into every key."""

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

from fedavg.secagg import graph
from fedavg.secagg.errors import TermsError
from fedavg.secagg.masks import sha256
from fedavg.secagg.ring import Encoding

SESSION_BYTES: Final = 16
DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class Terms:
    """One session: its name, the round and the model (SHA-256) that it serves, the encoding, the graph.

    The graph is complete, with `threshold` if given; or sparse, for `sparse` = (colluding rate, dropout rate). With
    `signed`, keys and the survivor set are signed by identities that an authority vouches for.
    `least` is the fewest survivors whose sum may be opened, if the graph alone would allow fewer.
    """

    session: bytes
    round: int
    model: bytes
    encoding: Encoding
    threshold: int | None = None
    sparse: tuple[float, float] | None = None
    signed: bool = False
    least: int = 0

    def __post_init__(self) -> None:
        if len(self.session) != SESSION_BYTES or len(self.model) != DIGEST_BYTES:
            raise TermsError(f"session, model: got {len(self.session)}, {len(self.model)} bytes; expected 16 and 32")
        if not 0 <= self.round < 2**63:
            raise TermsError(f"round: got {self.round}; expected a number from 0")
        if self.sparse is not None and self.threshold is not None:
            raise TermsError("threshold: a sparse graph has its own, from the rates; leave it out")
        if not 0 <= self.least <= self.encoding.clients:
            raise TermsError(f"{self.least} survivors are needed; only {self.encoding.clients} clients are invited")
        _ = self.topology  # impossible terms are refused here, not in the middle of a session

    @cached_property
    def topology(self) -> graph.Topology:
        if self.sparse is None:
            topology = graph.complete(self.encoding.clients, self.threshold)
        else:
            topology = graph.sparse(self.encoding.clients, *self.sparse, active=self.signed)
        return replace(topology, minimum=max(topology.minimum, self.least))

    @cached_property
    def digest(self) -> bytes:
        return sha256(b"fedavg secagg terms 1", self.to_json().encode())

    def to_json(self) -> str:
        content = asdict(self) | {"session": self.session.hex(), "model": self.model.hex()}
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Terms":
        """Strict: exactly these fields, each of its type."""
        try:
            content = json.loads(text)
            encoding = _checked(content["encoding"], Encoding, _ENCODING_TYPES)
            encoding["metrics"] = tuple(encoding["metrics"])
            if not all(isinstance(name, str) for name in encoding["metrics"]):
                raise ValueError("metrics must be names")
            values = _checked(content, cls, _TERMS_TYPES)
            values |= {"session": bytes.fromhex(values["session"]), "model": bytes.fromhex(values["model"])}
            values |= {"encoding": Encoding(**encoding), "sparse": _rates(values["sparse"])}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TermsError(f"not the terms of a session: {error}") from None
        return cls(**values)


_ENCODING_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "clients": (int,), "dimension": (int,), "clip": (int, float), "weight_cap": (int, float), "metrics": (list,),
    "bits": (int,), "wraps": (bool,),
}  # fmt: skip
_TERMS_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "session": (str,), "round": (int,), "model": (str,), "encoding": (dict,), "threshold": (int, type(None)),
    "sparse": (list, type(None)), "signed": (bool,), "least": (int,),
}  # fmt: skip


def _checked(content: Any, kind: type, types: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    if not isinstance(content, dict) or set(content) != names:
        raise ValueError(f"expected exactly the fields {sorted(names)}")
    for name, value in content.items():
        if type(value) not in types[name]:  # exact: True is not a number here
            raise ValueError(f"{name}: got {value!r}")
    return dict(content)


def _rates(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    adversaries, dropout = value
    if type(adversaries) not in (int, float) or type(dropout) not in (int, float):
        raise ValueError(f"sparse: got {value!r}")
    return adversaries, dropout
