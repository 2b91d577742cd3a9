"""Every example of bringing one's own data runs; each checks its own result."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedavg
from toys import blobs, toy_plan

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
NEEDS = {"parquet_with_client_column.py": "pyarrow", "hugging_face.py": "datasets"}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
# What other packages warn of when they are imported is not ours to fix.
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert "clients" in capsys.readouterr().out


def test_each_way_in_has_an_example() -> None:
    text = "".join(path.read_text() for path in EXAMPLES.glob("*.py"))
    for function in ("from_arrays", "from_clients", "from_dataset", "from_folder", "from_table", "from_huggingface"):
        assert f"data = {function}(" in text


def test_the_source_of_one_s_own_in_the_docs_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    program = page.partition("## A source of your own")[2].partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(program, names)
    paths = [tmp_path / f"{k}.npz" for k in range(3)]
    for k, path in enumerate(paths):
        x, y = blobs(6 + k, seed=k)
        np.savez(path, x=x.numpy(), y=y.numpy())
    plan = toy_plan(data=names["Shards"](paths), holdout=0.4, evaluate="clients", rounds=1, workers=1)
    assert len(fedavg.run(plan).rounds) == 1
