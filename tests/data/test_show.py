import json
from pathlib import Path

import numpy as np
import torch

from fedavg.data.federated import ArrayData
from fedavg.data.show import as_json, as_table, describe, plot, summary, summary_lines
from fedavg.types import Examples


def text_like() -> ArrayData:
    x = torch.zeros(5, 8, dtype=torch.int64)
    return ArrayData("text", x, x, [np.arange(2), np.arange(2, 5)], Examples(x, x))


def test_counts_by_hand(tiny: ArrayData) -> None:
    table = describe(tiny)
    assert table.sizes.tolist() == [3, 4, 0]
    assert table.labels.tolist() == [0, 1, 2]
    assert table.counts.tolist() == [[2, 1, 0], [1, 1, 2], [0, 0, 0]]
    assert table.labels_per_client.tolist() == [2, 3, 0]


def test_summary_by_hand(tiny: ArrayData) -> None:
    assert summary(describe(tiny)) == {
        "name": "tiny",
        "clients": 3,
        "train_examples": 7,
        "test_examples": 2,
        "client_size": {"min": 0, "median": 3.0, "max": 4},
        "labels_per_client": {"min": 0, "median": 2.0, "max": 3},
    }
    assert "labels/client     min 0, median 2, max 3" in summary_lines(describe(tiny))


def test_json_goes_there_and_back(tiny: ArrayData) -> None:
    document = as_json(describe(tiny))
    assert json.loads(json.dumps(document)) == document
    assert document["counts"][1] == [1, 1, 2]


def test_text_is_described_by_sizes_alone() -> None:
    table = describe(text_like())
    assert "counts" not in as_json(table)
    assert "labels_per_client" not in summary(table)
    assert len(summary_lines(table)) == 3
    assert len(as_table(table).columns) == 2


def test_the_table_shows_the_first_clients(tiny: ArrayData) -> None:
    lines = as_table(describe(tiny), rows=2)
    assert lines.row_count == 2
    assert lines.caption == "and 1 more clients"
    assert [column.header for column in lines.columns] == ["client", "n_k", "labels", "0", "1", "2"]


def test_plots_are_png_files(tiny: ArrayData, tmp_path: Path) -> None:
    for data in (tiny, text_like()):
        path = tmp_path / "new" / f"{data.name}.png"
        plot(describe(data), path)
        assert path.read_bytes().startswith(b"\x89PNG")
