"""Who is asked in a round. A new sampler is one class and one line here."""

from fedavg.samplers.informed import PowerOfChoice, Weighted
from fedavg.samplers.lookback import Corrected, Oort
from fedavg.samplers.sampler import Pool, Sampler
from fedavg.samplers.uniform import InTurns, Poisson, Uniform
from fedavg.specs import make

SAMPLERS: dict[str, type[Sampler]] = {
    "fixed": Uniform,
    "poisson": Poisson,
    "weighted": Weighted,
    "turns": InTurns,
    "choice": PowerOfChoice,
    "corrected": Corrected,
    "oort": Oort,
}


def make_sampler(value: str | Sampler) -> Sampler:
    """A sampler as a plan has it: the object, or its name with settings after colons."""
    return make(value, Sampler)  # type: ignore[type-abstract]


__all__ = [
    "SAMPLERS", "Corrected", "InTurns", "Oort", "Poisson", "Pool", "PowerOfChoice", "Sampler", "Uniform", "Weighted",
    "make_sampler",
]  # fmt: skip
