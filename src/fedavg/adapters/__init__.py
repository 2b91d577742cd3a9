"""Adapters: a few weights beside frozen ones. A new kind is one file and one line here."""

from fedavg.adapters.adapters import Adapted, Adapters, adapted
from fedavg.adapters.lora import LoRA
from fedavg.specs import make

ADAPTERS: dict[str, type[Adapters]] = {"lora": LoRA}


def make_adapters(value: str | Adapters) -> Adapters:
    """Adapters as a plan has them: the object, or their name with settings after colons."""
    return make(value, Adapters)  # type: ignore[type-abstract]


__all__ = ["ADAPTERS", "Adapted", "Adapters", "LoRA", "adapted", "make_adapters"]
