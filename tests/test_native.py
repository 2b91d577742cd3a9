"""Every C source of the package builds where there is a compiler: a mistake in one would only make it slow."""

import os
import platform
import shutil
from pathlib import Path

import pytest
import torch

import fedavg
from fedavg import native

SOURCES = sorted(Path(fedavg.__file__).parent.rglob("*.c"))

WIDE = platform.machine() == "aarch64" or torch.backends.cpu.get_cpu_capability().startswith("AVX")
COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) and os.environ.get(native.VARIABLE) != "0"

needs_compiler = pytest.mark.skipif(
    not (WIDE and COMPILER), reason="needs a C compiler and a processor with wide vectors"
)


@needs_compiler
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_it_builds(source: Path) -> None:
    assert native.library(source) is not None


def test_there_are_sources() -> None:
    assert {path.stem for path in SOURCES} >= {"lstm_native", "convolution", "direct"}
