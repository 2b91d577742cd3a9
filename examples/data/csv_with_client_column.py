"""A CSV file with a column that says whose example each row is."""

from pathlib import Path
from tempfile import TemporaryDirectory

from fedavg.data.own import from_table
from fedavg.data.show import describe, summary_lines

ROWS = """hospital,age,pressure,outcome
north,61,140,ill
south,35,120,well
north,44,125,well
south,70,150,ill
north,58,135,ill
"""

with TemporaryDirectory() as name:
    path = Path(name) / "patients.csv"
    path.write_text(ROWS)
    data = from_table(path, client="hospital", label="outcome", held_out=0.4)

print("\n".join(summary_lines(describe(data))))
assert data.sizes.tolist() == [2, 1]
assert data.client(0).x.tolist() == [[61, 140], [44, 125]]
assert data.client(0).y.tolist() == [0, 1]  # ill, well
