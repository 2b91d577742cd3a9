"""How updates become bytes. A new codec is one file and one line here."""

from fedavg.codecs.codec import Codec
from fedavg.codecs.dense import BFloat16, Float16, Float32
from fedavg.codecs.entropy import Entropy
from fedavg.codecs.lowrank import LowRank
from fedavg.codecs.mask import Mask
from fedavg.codecs.quantise import Quantise
from fedavg.codecs.stc import SparseTernary
from fedavg.codecs.topk import TopK
from fedavg.specs import parse_spec

CODECS: dict[str, type[Codec]] = {
    "float32": Float32,
    "float16": Float16,
    "bfloat16": BFloat16,
    "quantise": Quantise,
    "mask": Mask,
    "lowrank": LowRank,
    "topk": TopK,
    "stc": SparseTernary,
    "entropy": Entropy,
}


def make_codec(text: str) -> Codec:
    """A codec as a plan writes it: its name, and its settings after colons; after `entropy:` comes another codec."""
    name, _, rest = str(text).partition(":")
    if name == Entropy.name and rest:
        return Entropy(make_codec(rest))
    return parse_spec(text, CODECS, "codec")


__all__ = ["CODECS", "Codec", "make_codec"]
