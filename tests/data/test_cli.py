import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedavg.cli.data import data
from fedavg.data import DATASETS, embedded
from fedavg.data.download import present
from fedavg.errors import DataError, PlanError
from toys import put

pytestmark = pytest.mark.usefixtures("empty_dir")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(data, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: str) -> dict[str, Any]:
    document = json.loads(run(*arguments, "--json"))
    assert isinstance(document, dict)
    return document


def test_list_has_every_data_set(empty_dir: Path) -> None:
    text = run("list")
    document = run_json("list")
    assert [row["name"] for row in document["datasets"]] == list(DATASETS)
    assert document["data_dir"] == str(empty_dir)
    assert all(name in text for name in DATASETS)
    assert document["datasets"][0]["state"] == "built in"


def test_info() -> None:
    document = run_json("info", "mnist")
    assert document["clients"] == 100
    assert document["train_examples"] == 60_000
    assert document["test_examples"] == 10_000
    assert document["licence"] == "CC BY-SA 3.0"
    assert "60,000 to train, 10,000 to test" in run("info", "mnist")


def test_settings_after_the_name() -> None:
    assert "clients           100" in run("info", "mnist:pixels=centred")
    assert run_json("show", "mnist:pixels=centred", "--clients", "10")["name"] == "mnist:pixels=centred"
    assert run_json("info", "mnist")["settings"] == {"pixels": ["unit", "centred"]}


def test_info_without_the_files_says_how_to_get_them() -> None:
    assert "missing: fedavg data get posts" in run("info", "posts")
    document = run_json("info", "posts")
    assert document["state"] == "missing"
    assert "train_examples" not in document


def test_info_beside_the_paper(real_data: Path) -> None:
    if not present(DATASETS["shakespeare"].files[0], real_data):
        pytest.skip(f"the 1994 edition is not in {real_data}")
    document = run_json("info", "shakespeare", "--data-dir", str(real_data))
    assert document["facts"] == {"train_characters": 3_564_184, "test_characters": 869_916}
    assert document["paper"] == "1146 clients; 3,564,579 characters to train, 870,014 to test"


def test_get_of_what_is_in_the_package() -> None:
    assert "nothing to fetch" in run("get", "mnist")
    assert run_json("get", "synthetic-posts") == {"name": "synthetic-posts", "built_in": True, "files": []}


def test_get_names_the_files(empty_dir: Path) -> None:
    labels = empty_dir / "mnist" / "t10k-labels-idx1-ubyte"
    for name, raw in embedded.read_all().items():
        put(empty_dir / "mnist" / name, raw.tobytes())
    files = run_json("get", "mnist")["files"]
    assert {"path": str(labels), "sha256": embedded.SHA256[labels.name], "fetched": False} in files
    assert f"here     {labels}" in run("get", "mnist")


@pytest.mark.usefixtures("offline")
def test_get_without_network_says_where_to_put_the_file(empty_dir: Path) -> None:
    with pytest.raises(DataError, match="needs a file that is not there") as raised:
        run("get", "cifar10")
    assert str(empty_dir / "cifar10" / "cifar-10-binary.tar.gz") in str(raised.value)
    assert not empty_dir.exists()


def test_show_in_words_and_json() -> None:
    options = ("show", "mnist", "--partition", "shards", "--clients", "50", "--seed", "3")
    assert "mnist: 50 clients" in run(*options)
    document = run_json(*options)
    assert document["partition"] == "shards"
    assert document["seed"] == 3
    assert document["sizes"] == [1200] * 50
    assert sum(map(sum, document["counts"])) == 60_000


def test_show_plots(tmp_path: Path) -> None:
    picture = tmp_path / "partition.png"
    result = CliRunner().invoke(data, ["show", "mnist", "--plot", str(picture), "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["clients"] == 100
    assert f"wrote {picture}" in result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_errors_of_the_plan() -> None:
    with pytest.raises(PlanError, match="data: got 'cats'; expected one of mnist"):
        run("show", "cats")
    with pytest.raises(PlanError, match="partition: got 'x'; expected one of iid"):
        run("show", "mnist", "--partition", "x")


def test_help_does_not_import_torch() -> None:
    code = "import sys, fedavg.cli.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
