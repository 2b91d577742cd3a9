"""How updates become bytes. A new codec is one file and one line here."""

from fedavg.codecs.codec import Codec
from fedavg.codecs.dense import Float16, Float32
from fedavg.specs import parse_spec

CODECS: dict[str, type[Codec]] = {
    "float32": Float32,
    "float16": Float16,
}


def make_codec(text: str) -> Codec:
    """A codec as a plan writes it: its name, and its settings after colons."""
    return parse_spec(text, CODECS, "codec")


__all__ = ["CODECS", "Codec", "make_codec"]
