"""What a user's own data source must give, checked before round 1."""

import numpy as np
from torch import Tensor

from fedavg import trees
from fedavg.errors import DataError
from fedavg.ragged import Ragged
from fedavg.types import Examples, FederatedData


def check_sizes(data: FederatedData) -> None:
    """Refuse sizes that are not an array, data in which no client has examples, and an empty test set."""
    sizes: object = data.sizes
    if not (isinstance(sizes, np.ndarray) and sizes.ndim == 1 and sizes.dtype.kind in "iu"):
        raise DataError(
            f"data '{data.name}': sizes is {type(sizes).__name__}; expected a numpy array of whole numbers, one for "
            "each client"
        )
    if not sizes.any():
        raise DataError(f"data '{data.name}': no client has any example; expected at least one")
    if data.test is not None and not len(data.test):
        raise DataError(
            f"data '{data.name}': its test set is empty; expected examples, or None if the server has none to judge on"
        )


def check_client(data: FederatedData, k: int, examples: object) -> None:
    """Refuse a client's examples if they are not `Examples`."""
    what, size = f"data '{data.name}': client({k})", int(data.sizes[k])
    if not isinstance(examples, Examples):
        raise DataError(f"{what} gave {type(examples).__name__}; expected fedavg.Examples(x, y)")
    for part, tree in (("x", examples.x), ("y", examples.y)):
        other = [leaf for leaf in trees.leaves(tree) if not isinstance(leaf, Tensor | Ragged)]
        if other:
            raise DataError(f"{what}: {part} holds {type(other[0]).__name__}; expected tensors with a row per example")
        if trees.length(tree) != size:
            raise DataError(f"{what}: {part} has {trees.length(tree)} rows, and sizes says {size}; expected as many")
