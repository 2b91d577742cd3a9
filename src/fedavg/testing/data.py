"""What every data source must do."""

from typing import Any

import numpy as np
import torch

from fedavg import trees
from fedavg.testing.problem import require
from fedavg.types import Examples, FederatedData


def check_data(data: FederatedData) -> None:
    """Clients have as many examples as `sizes` says, of one form, and the same ones whenever they are asked.

    >>> from fedavg.testing.problem import small_data
    >>> check_data(small_data())
    """
    what = f"data {getattr(data, 'name', data)!r}"
    require(isinstance(data, FederatedData), f"{what} is not a fedavg.FederatedData; derive its class from it")
    sizes = data.sizes
    require(
        isinstance(sizes, np.ndarray) and sizes.ndim == 1 and sizes.dtype.kind == "i",
        f"{what}: sizes is {type(sizes).__name__}; expected a numpy array of whole numbers, one for each client",
    )
    require(
        bool((sizes >= 0).all() and sizes.any()), f"{what}: sizes is {sizes[:9]}; expected some client to have data"
    )
    forms = set()
    for k in _some(len(data)):
        own, again = data.client(k), data.client(k)
        require(isinstance(own, Examples), f"{what}: client({k}) gave {type(own).__name__}; expected fedavg.Examples")
        require(
            trees.length(own.x) == len(own) == sizes[k],
            f"{what}: client {k} has {trees.length(own.x)} x and {len(own)} y; sizes says {sizes[k]}",
        )
        require(
            _same(own, again), f"{what}: client {k} had other examples when asked again; expected the same, in order"
        )
        if len(own):
            forms.add((_form(own.x), _form(own.y)))
    require(len(forms) == 1, f"{what}: examples of clients have {len(forms)} forms: {sorted(forms)}; expected one")
    if data.test is not None:
        form = (_form(data.test.x), _form(data.test.y))
        require(form in forms, f"{what}: test examples are {form}; expected the form of clients' {forms.pop()}")
    name = data.fingerprint
    require(
        isinstance(name, str) and bool(name) and name == data.fingerprint,
        f"{what}: fingerprint is {name!r}; expected a text that stands for the content, the same each time",
    )


def _some(count: int) -> list[int]:
    """All clients, or a hundred spread over them."""
    return sorted({int(k) for k in np.linspace(0, count - 1, min(count, 100))})


def _form(tree: Any) -> str:
    """Shapes of one example and types."""
    return trees.shapes(trees.rows(tree, slice(0, 1)))


def _same(one: Examples, other: Examples) -> bool:
    pairs = zip(trees.leaves(one.x) + trees.leaves(one.y), trees.leaves(other.x) + trees.leaves(other.y), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor))
