"""Data that is already in memory: a list with (x, y) of each client."""

import numpy as np

from fedavg.data.own import from_clients
from fedavg.data.show import describe, summary_lines

rng = np.random.default_rng(0)
clients = []
for size in (30, 50, 20):
    x = rng.normal(size=(size, 4))
    clients.append((x, (x.sum(axis=1) > 0).astype(np.int64)))

data = from_clients(clients, name="three clinics")

print("\n".join(summary_lines(describe(data))))
assert data.sizes.tolist() == [24, 40, 16]
assert len(data.test) == 20
