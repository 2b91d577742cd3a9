"""NumPy arrays with a row per example, dealt out to clients by a partition."""

import numpy as np

from fedavg.data.own import from_arrays

rng = np.random.default_rng(0)
x, y = rng.normal(size=(200, 4)), rng.integers(0, 3, 200)
data = from_arrays(x, y, "dirichlet:0.5", clients=5)
print(f"{len(data)} clients, {data.sizes.sum()} examples to train, {len(data.test)} to test")
assert data.sizes.sum() + len(data.test) == 200
