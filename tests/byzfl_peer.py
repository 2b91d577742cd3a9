"""ByzFL's aggregators and attacks only: its package imports torchvision and seaborn, which they do not need. Tests that
compare ours with theirs are skipped if it is not installed."""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType

import pytest

VERSION = "0.0.11"


def peer(name: str) -> ModuleType:
    """A module of ByzFL, such as 'aggregators.aggregators'."""
    try:
        installed = distribution("byzfl")
    except PackageNotFoundError:
        pytest.skip(f"byzfl {VERSION} is not installed: pip install --no-deps byzfl=={VERSION} (make setup does)")
    if installed.version != VERSION:
        pytest.skip(f"byzfl is {installed.version}; values are those of {VERSION}")
    if "byzfl" not in sys.modules:
        package = ModuleType("byzfl")
        package.__path__ = [str(installed.locate_file("byzfl"))]
        sys.modules["byzfl"] = package
    return import_module(f"byzfl.{name}")
