"""A Hugging Face dataset with a column for the client. Needs the package `datasets`."""

from datasets import Dataset

from fedavg.data.own import from_huggingface
from fedavg.data.show import describe, summary_lines

rows = {
    "writer": ["ann", "bob", "ann", "bob", "ann"],
    "pixels": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "digit": [3, 1, 4, 1, 5],
}

data = from_huggingface(Dataset.from_dict(rows), client="writer", x="pixels", y="digit", name="writers")

print("\n".join(summary_lines(describe(data))))
assert data.sizes.tolist() == [2, 1]
assert data.client(0).x.tolist() == [[0, 1], [4, 5]]
