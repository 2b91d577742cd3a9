"""A Parquet file with a column that says whose example each row is. Needs pyarrow."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyarrow import parquet

from fedavg.data.own import from_table
from fedavg.data.show import describe, summary_lines

table = pa.table({"user": [1, 1, 2, 2, 2], "a": [0.1, 0.2, 0.3, 0.4, 0.5], "b": [1, 2, 3, 4, 5], "y": [0, 1, 0, 1, 0]})

with TemporaryDirectory() as name:
    path = Path(name) / "events.parquet"
    parquet.write_table(table, path)
    data = from_table(path, client="user", label="y", features=["a", "b"])

print("\n".join(summary_lines(describe(data))))
assert data.sizes.tolist() == [1, 2]
