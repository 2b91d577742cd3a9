"""How clients lie, for simulations. A new attack is one file and one line here."""

from fedavg.attacks.alie import LittleIsEnough, OptimalLittleIsEnough
from fedavg.attacks.attack import Attack, View
from fedavg.attacks.backdoor import Backdoor
from fedavg.attacks.freerider import FreeRider
from fedavg.attacks.gaussian import Gaussian
from fedavg.attacks.ipm import InnerProduct, OptimalInnerProduct
from fedavg.attacks.labelflip import LabelFlip
from fedavg.attacks.mimic import Mimic
from fedavg.attacks.minmax import MinMax
from fedavg.attacks.nonfinite import Infinities, NaNs
from fedavg.attacks.scaled import Scaled, SignFlip
from fedavg.specs import make

ATTACKS: dict[str, type[Attack]] = {
    "nan": NaNs,
    "inf": Infinities,
    "gaussian": Gaussian,
    "signflip": SignFlip,
    "scaled": Scaled,
    "ipm": InnerProduct,
    "optipm": OptimalInnerProduct,
    "alie": LittleIsEnough,
    "optalie": OptimalLittleIsEnough,
    "mimic": Mimic,
    "labelflip": LabelFlip,
    "backdoor": Backdoor,
    "freerider": FreeRider,
    "minmax": MinMax,
}


def make_attack(value: str | Attack) -> Attack:
    """An attack as a plan has it: the object, or its name with settings after colons."""
    return make(value, Attack)


__all__ = [
    "ATTACKS", "Attack", "Backdoor", "FreeRider", "Gaussian", "Infinities", "InnerProduct", "LabelFlip",
    "LittleIsEnough", "Mimic", "MinMax", "NaNs", "OptimalInnerProduct", "OptimalLittleIsEnough", "Scaled", "SignFlip",
    "View", "make_attack",
]  # fmt: skip
