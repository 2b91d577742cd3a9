"""How updates become bytes. A new codec is one file and one line here."""

from fedavg.codecs.codec import Codec
from fedavg.codecs.dense import Dense

CODECS: dict[str, Codec] = {
    "float32": Dense("float32", "<f4"),
    "float16": Dense("float16", "<f2"),
}

__all__ = ["CODECS", "Codec"]
