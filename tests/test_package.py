"""What an installed package has besides its modules."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import fedavg

HERE = Path(fedavg.__file__).parent


def test_a_users_type_checker_sees_its_types() -> None:
    assert (HERE / "py.typed").is_file()


def test_kernels_find_what_they_include() -> None:
    sources = [*HERE.rglob("*.c")]
    included = [
        (source, line.split('"')[1])
        for source in sources
        for line in source.read_text().splitlines()
        if line.startswith('#include "')
    ]
    assert included
    assert all((source.parent / name).is_file() for source, name in included)


def test_a_wheel_for_devices_leaves_mnist_out(tmp_path) -> None:
    """9.7 MB of the 11.4 MB of a wheel without kernels; 1.6 MB are left, of which 0.6 MB are the paper's records."""
    root = Path(__file__).parents[1]
    variables = {"PATH": "/usr/bin:/bin", "FEDAVG_BUILD_KERNELS": "0", "FEDAVG_BUILD_MNIST": "0"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, env=variables, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = ZipFile(wheel).namelist()
    assert "fedavg/data/embedded/__init__.py" in names
    assert not [name for name in names if name.endswith((".gz", ".xz"))]
    assert wheel.stat().st_size < 2.5e6
