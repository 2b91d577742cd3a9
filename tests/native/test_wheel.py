"""What a user installs: a wheel with kernels for Linux on x86-64, one of Python alone elsewhere, and the source."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedavg import native
from fedavg.native.recipe import LEVELS

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not (ROOT / "hatch_build.py").is_file(), reason="needs the source tree")
needs_compiler = pytest.mark.skipif(not (LINUX and shutil.which("cc")), reason="needs a compiler on Linux, x86-64")


def build(target, folder, root=ROOT, **changes):
    """What hatchling makes, with all that is needed installed already."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environment = {key: value for key, value in os.environ.items() if key not in ("CC", "FEDAVG_BUILD_KERNELS")}
    done = subprocess.run(command, cwd=root, env=environment | changes, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [made] = folder.iterdir()
    return made, done.stdout + done.stderr


def kernels_in(wheel):
    return sorted(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".kernel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The source as it is published."""
    folder = tmp_path_factory.mktemp("source")
    source, _ = build("sdist", folder / "built")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [root] = (folder / "unpacked").iterdir()
    return root


def quick_elsewhere(folder):
    """A compiler that optimises only what is run below: kernels for another processor, and the largest of all, which
    the convolutional network does not use, are built and loaded, and not run."""
    here = native.in_use()
    theirs = [level for level in LEVELS if level is not here]
    flags = " ".join([*theirs[0].flags, "-o"])
    compiler = folder / "cc"
    quick = f'*"{flags}"*|*/program.c'
    compiler.write_text(f'#!/bin/sh\ncase "$*" in {quick}) exec cc "$@" -O0;; *) exec cc "$@";; esac\n')
    compiler.chmod(0o755)
    return compiler


@pytest.fixture(scope="module")
def installed(unpacked, tmp_path_factory):
    """The wheel that the source builds, installed in a folder of its own; PyTorch comes from here."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, _ = build("wheel", folder / "built", unpacked, CC=str(quick_elsewhere(folder)))
    assert wheel.name.startswith("fedavg-")
    assert "-py3-none-manylinux_2_" in wheel.name
    assert len(kernels_in(wheel)) == 2 * len(list((ROOT / "src").rglob("*.c")))
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return target


LOADS = """
import json, fedavg
from pathlib import Path
from fedavg import native
here = Path(fedavg.__file__).parent
found = {source.stem: native.found(source) for source in here.rglob("*.c")}
result = fedavg.run(fedavg.Plan(task="mnist-cnn", C=0.01, rounds=1, workers=1, evaluate="none"))
print(json.dumps({"here": str(here), "origins": {stem: each.origin for stem, each in found.items() if each.library},
                  "sources": sorted(found), "engine": result.summary.engine, "sha256": result.summary.model_sha256}))
"""


def run_without_a_compiler(installed, folder, **changes):
    environment = {"PATH": str(folder), "PYTHONPATH": str(installed), "HOME": str(folder), **changes}
    done = subprocess.run(
        [sys.executable, "-c", LOADS], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    answer = json.loads(done.stdout)
    assert Path(answer["here"]).is_relative_to(installed), "another package was imported"
    return answer


@needs_compiler
def test_an_installed_wheel_trains_with_its_kernels_without_a_compiler(installed, tmp_path):
    answer = run_without_a_compiler(installed, tmp_path)
    assert sorted(answer["origins"]) == answer["sources"]
    assert {origin.partition(",")[0] for origin in answer["origins"].values()} == {"comes with the package"}
    assert answer["engine"].startswith("graph with native convolution")
    without = run_without_a_compiler(installed, tmp_path, FEDAVG_NATIVE="0")
    assert (without["origins"], without["engine"]) == ({}, "graph")
    # What is built here computes the same bits: the same source, the same flags.
    assert run_from_here(tmp_path)["sha256"] == answer["sha256"] != without["sha256"]


def run_from_here(folder):
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=folder, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert all(origin.startswith("built here by") for origin in answer["origins"].values())
    return answer


@needs_compiler
def test_a_wheel_has_each_kernel_for_both_kinds_of_processors(installed):
    sources = {path.stem for path in (ROOT / "src").rglob("*.c")}
    shipped = {path.name.rsplit("-", 1)[0] for path in (installed / "fedavg/native/prebuilt").iterdir()}
    assert shipped == {f"{stem}-{level}" for stem in sources for level in ("avx2", "avx512")}


def test_without_a_compiler_a_wheel_of_python_alone_is_made(tmp_path):
    wheel, said = build("wheel", tmp_path / "built", PATH=str(tmp_path))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not kernels_in(wheel)
    assert "the wheel has no kernels" in said
    records = ROOT / "docs/results/records"
    within = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fedavg/paper/measured/")}
    assert within == {f"fedavg/paper/measured/{path.relative_to(records)}" for path in records.rglob("*.json")}


def test_the_source_builds_the_same_wheel(unpacked, tmp_path):
    """Kernels are left out here: to build them takes long, and those of the source are installed above."""
    wheels = [
        zipfile.ZipFile(build("wheel", tmp_path / root.name, root, FEDAVG_BUILD_KERNELS="0")[0])
        for root in (ROOT, unpacked)
    ]
    of_tree, of_source = ({file.filename: file.CRC for file in wheel.infolist()} for wheel in wheels)
    assert of_tree == of_source
    assert any(name.startswith("fedavg/paper/measured/") for name in of_source)
