"""How updates become bytes. A new codec is one file and one line here."""

from fedavg.codecs.codec import Codec
from fedavg.codecs.dense import BFloat16, Float16, Float32
from fedavg.codecs.entropy import Entropy
from fedavg.codecs.lowrank import LowRank
from fedavg.codecs.mask import Mask
from fedavg.codecs.quantise import Quantise
from fedavg.codecs.stc import STC
from fedavg.codecs.topk import TopK
from fedavg.specs import make

CODECS: dict[str, type[Codec]] = {
    "float32": Float32,
    "float16": Float16,
    "bfloat16": BFloat16,
    "quantise": Quantise,
    "mask": Mask,
    "lowrank": LowRank,
    "topk": TopK,
    "stc": STC,
    "entropy": Entropy,
}


def make_codec(value: str | Codec) -> Codec:
    """A codec as a plan has it: the object, or its name with settings; after `entropy:` comes another codec."""
    return make(value, Codec)  # type: ignore[type-abstract]


__all__ = [
    "CODECS", "STC", "BFloat16", "Codec", "Entropy", "Float16", "Float32", "LowRank", "Mask", "Quantise", "TopK",
    "make_codec",
]  # fmt: skip
