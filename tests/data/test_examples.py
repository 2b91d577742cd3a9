"""Every example of bringing one's own data runs; each checks its own result."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
NEEDS = {"parquet_with_client_column.py": "pyarrow", "hugging_face.py": "datasets"}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
# What other packages warn of when they are imported is not ours to mend.
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert "clients" in capsys.readouterr().out


def test_each_way_in_has_an_example() -> None:
    text = "".join(path.read_text() for path in EXAMPLES.glob("*.py"))
    for function in ("from_clients", "from_dataset", "from_folder", "from_table", "from_huggingface"):
        assert f"data = {function}(" in text
