"""What a device releases of its data under differential privacy, by its own account.

For a round number it makes one update, and sends that same update in every attempt at the round: fresh noise on the
same update could be averaged out. Under secure aggregation it makes one for each session instead, because the server
sees only sums, and two sums with the same noise would show their difference. Each update is charged to this device's
own budget, on its disk, before it is sent; once the next might cost too much, the device stops taking part.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from fedavg.client_path import Message
from fedavg.dp.accounting import epsilon_of
from fedavg.errors import FleetError
from fedavg.files import write_atomically
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.policy import DELTA
from fedavg.fleets.http.protocol.messages import WorkOffer
from fedavg.locks import wait_for_lock
from fedavg.privacy.served import BudgetSpent
from fedavg.setup import Setup

_KEPT: Final = "kept.update"


class Releases:
    """Does nothing for a plan without noise. `limit` is what this device may spend, besides the plan's own limit."""

    def __init__(self, setup: Setup, files: DeviceFiles, spent: Path, limit: float | None) -> None:
        self._budget, self._files, self._spent = setup.budget, files, spent
        self._masked = setup.secagg is not None
        if limit is not None and self._budget is None:
            raise FleetError(
                f"--max-epsilon {limit:g}: the server's plan adds no noise, so nothing bounds what an update "
                "reveals; expected a plan with noise, or no --max-epsilon"
            )
        #: Epsilon and delta: the plan's own, and this device's, whose delta the server does not choose.
        self._limits: list[tuple[float, float]] = []
        if self._budget is not None and setup.plan.dp_epsilon is not None:
            self._limits.append((setup.plan.dp_epsilon, self._budget.delta))
        if limit is not None:
            self._limits.append((limit, DELTA))

    def has(self, offer: WorkOffer) -> bool:
        """Has the update of this offer been made already?"""
        return self._budget is not None and (kept := self._kept()) is not None and kept[0] == self._name(offer)

    def check(self, offer: WorkOffer) -> None:
        """BudgetSpent if the update of this offer might cost more than this device may spend."""
        if self._budget is None or not self._limits or self.has(offer):
            return
        counts = self._counts()
        for limit, delta in self._limits:
            cost = epsilon_of(self._one_more(counts), delta)
            if cost > limit:
                raise BudgetSpent(
                    f"this device's privacy budget is spent: after {sum(counts.values())} updates another one would "
                    f"cost epsilon {cost:.4g} in all at delta {delta:g}, more than {limit:g}; it takes no further part"
                )

    def message(self, offer: WorkOffer, train: Callable[[WorkOffer], Message]) -> Message:
        """The update of an offer: the kept one, or a new one, which is charged and kept before it is returned."""
        if self._budget is None:
            return train(offer)
        kept = self._kept()
        if kept and kept[0] == self._name(offer):
            return kept[1]
        if kept and not self._masked and offer.round <= kept[0]["round"]:
            raise FleetError(
                f"the update of round {kept[0]['round']} is made already, from another model or for a later round than "
                f"{offer.round}; under differential privacy a device makes one a round"
            )
        message = train(offer)
        self._charge(offer)
        self._keep(offer, message)
        return message

    def _name(self, offer: WorkOffer) -> dict[str, Any]:
        model = {"round": offer.round, "model": offer.model}
        return model | {"session": offer.session} if self._masked else model

    def _kept(self) -> tuple[dict[str, Any], Message] | None:
        if not self._files.exists(_KEPT):
            return None
        digest, _, content = self._files.read(_KEPT).partition(b"\n")
        if digest != sha256(content).hexdigest().encode():
            raise self._files.damaged(_KEPT, "it does not match its digest")
        head, _, frame = content.partition(b"\n")
        values = json.loads(head)
        return values["name"], Message(frame, values["weight"], values["metrics"])

    def _keep(self, offer: WorkOffer, message: Message) -> None:
        head = {"name": self._name(offer), "weight": message.weight, "metrics": message.metrics}
        content = json.dumps(head).encode() + b"\n" + message.frame
        self._files.write(_KEPT, sha256(content).hexdigest().encode() + b"\n" + content)

    def _charge(self, offer: WorkOffer) -> None:
        with _alone(self._spent):
            self.check(offer)
            counts = self._one_more(self._counts())
            releases = {repr(noise): count for noise, count in counts.items()}
            content = {"releases": releases, "sha256": _digest(releases)}
            write_atomically(self._spent, json.dumps(content).encode(), private=True)

    def _one_more(self, counts: dict[float, int]) -> dict[float, int]:
        assert self._budget
        noise = self._budget.noise_multiplier
        return counts | {noise: counts.get(noise, 0) + 1}

    def _counts(self) -> dict[float, int]:
        """The number of updates made so far, by noise multiplier."""
        try:
            content = json.loads(self._spent.read_bytes())
            if content["sha256"] != _digest(content["releases"]):
                raise ValueError
            return {float(noise): int(count) for noise, count in content["releases"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FleetError(
                f"{self._spent} cannot be read, and without it nobody knows what this device has spent; restore it"
            ) from None


def _digest(releases: dict[str, int]) -> str:
    return sha256(json.dumps(releases, sort_keys=True).encode()).hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Devices that share a budget charge it one at a time."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        wait_for_lock(file.fileno())
        yield
