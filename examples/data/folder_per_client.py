"""A folder with a file or sub-folder per client, and one called test."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedavg.data.own import from_folder
from fedavg.data.show import describe, summary_lines


def some(count: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros((count, 3), np.float32), "y": np.arange(count) % 2}


with TemporaryDirectory() as name:
    folder = Path(name)
    np.savez(folder / "alice.npz", **some(8))
    (folder / "bob").mkdir()
    np.savez(folder / "bob" / "monday.npz", **some(5))
    np.savez(folder / "bob" / "tuesday.npz", **some(7))
    (folder / "carol.csv").write_text("height,weight,age,label\n1.7,60,30,1\n1.8,75,41,0\n")
    np.savez(folder / "test.npz", **some(10))

    data = from_folder(folder, label="label", name="people")

print("\n".join(summary_lines(describe(data))))
assert data.sizes.tolist() == [8, 12, 2]
assert len(data.test) == 10
