"""What every attack must do."""

from typing import Any

from fedavg.attacks import Attack
from fedavg.errors import Diverged
from fedavg.server import Round, train
from fedavg.testing.problem import check_repeats, check_text, require, small_plan


def check_attack(attack: Attack, **options: Any) -> None:
    """It makes a difference, and a run with it and a reducer ends, with the same bits on any workers and after a stop.

    >>> from fedavg.attacks import SignFlip
    >>> check_attack(SignFlip())
    """
    what = f"attack {attack!r}"
    require(isinstance(attack, Attack), f"{what} is not a fedavg.Attack; derive its class from it")
    require(attack.sees in ("own", "honest"), f"{what}: sees is {attack.sees!r}; expected 'own' or 'honest'")
    check_text(attack, Attack, what)
    lying = {"attack": attack, "attackers": 0.2, "C": 1.0, "rounds": 2, **options}
    require(
        _weights(**lying) != _weights(**{**lying, "attack": None, "attackers": 0.0}),
        f"{what}: a run with liars gave the model of a run without; expected another. Define on_examples or on_update, "
        "or, where liars see the honest updates, forge",
    )
    plan = small_plan(reducer="median", **lying)
    check_repeats(plan, what)


def _weights(**options: Any) -> list[float] | None:
    """The last model; None if the run diverged, which an attack on a mean may lead to."""
    try:
        *_, end = train(small_plan(**options))
    except Diverged:
        return None
    assert isinstance(end, Round)
    return end.state.weights.tolist()
