"""Puts the kernels in C into a wheel for Linux on x86-64, built for AVX2 and for AVX-512.

FEDAVG_BUILD_KERNELS=0 leaves them out, 1 makes it an error if they cannot be built; unset, a machine without a
compiler makes a wheel of Python alone, which builds kernels on the user's machine if that has one.

FEDAVG_BUILD_MNIST=0 leaves the embedded copy of MNIST out, which is most of a wheel and which devices do not need.
"""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "FEDAVG_BUILD_KERNELS"
MNIST = "FEDAVG_BUILD_MNIST"
#: The least that a tag may say; nothing older has PyTorch.
OLDEST_GLIBC = 17


class KernelsHook(BuildHookInterface):
    PLUGIN_NAME = "custom"
    _made_in: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._choose_data(os.environ.get(MNIST, ""))
        asked = os.environ.get(VARIABLE, "")
        if asked not in ("", "0", "1"):
            raise SystemExit(f"{VARIABLE}: got '{asked}'; expected 0, 1 or nothing")
        if version == "editable" or asked == "0":
            return
        if sys.platform != "linux" or platform.machine() != "x86_64":
            self._without("kernels are built for Linux on x86-64 alone", asked)
            return
        recipe = load_recipe(Path(self.root))
        compiler = recipe.find_compiler(os.environ)
        if compiler is None:
            self._without("no C compiler was found (CC, cc, gcc, clang)", asked)
            return
        try:
            made = build_all(Path(self.root), recipe, compiler)
        except (OSError, subprocess.SubprocessError) as error:
            self._without(f"{compiler[0]} fails: {getattr(error, 'stderr', b'') or error}", asked)
            return
        build_data["force_include"] |= {str(path): f"fedavg/native/prebuilt/{path.name}" for path in made}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(made)}"
        self._made_in = made[0].parent

    def _choose_data(self, asked: str) -> None:
        if asked not in ("", "0", "1"):
            raise SystemExit(f"{MNIST}: got '{asked}'; expected 0, 1 or nothing")
        if asked == "0":
            left_out = self.build_config.target_config.setdefault("exclude", [])
            left_out += ["/src/fedavg/data/embedded/*.gz", "/src/fedavg/data/embedded/*.xz"]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._made_in:
            shutil.rmtree(self._made_in)

    def _without(self, reason: str, asked: str) -> None:
        if asked == "1":
            raise SystemExit(f"{VARIABLE}=1: {reason}; expected a C compiler on Linux, x86-64")
        self.app.display_warning(f"the wheel has no kernels: {reason}")


def load_recipe(root: Path) -> ModuleType:
    """`fedavg.native.recipe` without the package, which needs PyTorch."""
    spec = importlib.util.spec_from_file_location("recipe", root / "src" / "fedavg" / "native" / "recipe.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe"] = module
    spec.loader.exec_module(module)
    return module


def build_all(root: Path, recipe: ModuleType, compiler: list[str]) -> list[Path]:
    """Each C source of the package for each level, as files of a new folder."""
    folder = Path(mkdtemp(prefix="fedavg-kernels-"))
    made = []
    for source in sorted((root / "src" / "fedavg").rglob("*.c")):
        for level in recipe.LEVELS:
            path = folder / recipe.kernel_name(source, level)
            path.write_bytes(recipe.sealed(recipe.built(source, level, compiler)))
            made.append(path)
    return made


def platform_tag(made: list[Path]) -> str:
    """manylinux of the newest glibc that a kernel asks for: its versions stand in the file by their names."""
    versions = [int(minor) for path in made for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return f"manylinux_2_{max([OLDEST_GLIBC, *versions])}_x86_64"
