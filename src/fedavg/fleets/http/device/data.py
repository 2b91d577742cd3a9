"""The data of a device, as a plan sees it."""

import numpy as np

from fedavg.types import Examples, FederatedData


class DeviceData(FederatedData):
    """The examples of this device. Of the others it knows only how many there are, if the plan says so."""

    def __init__(self, k: int, examples: Examples, population: int | None) -> None:
        self.name = "this device"
        self._k, self._examples = k, examples
        self._population = max(population or 0, k + 1)

    @property
    def sizes(self) -> np.ndarray:
        sizes = np.ones(self._population, np.int64)
        sizes[self._k] = len(self._examples)
        return sizes

    def client(self, k: int) -> Examples:
        return self._examples

    @property
    def test(self) -> Examples:
        return self._examples

    @property
    def fingerprint(self) -> str:
        return "device"
