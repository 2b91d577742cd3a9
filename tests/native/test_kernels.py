"""Every C source of the package builds where there is a compiler: a mistake in one would only make it slow."""

import os
import platform
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import fedavg
from fedavg import native
from fedavg.errors import FedAvgError
from fedavg.native import folders, kernels, recipe

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


# ---- builds are kept ----

ONE = "int one(void) { return NUMBER; }\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty cache, a source of its own, and a compiler that notes when it builds; gives the notes."""
    notes = tmp_path / "notes"
    notes.touch()
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo built >> {notes}\nexec cc "$@"\n')
    compiler.chmod(0o700)
    (tmp_path / "one.c").write_text(f'#include "number.h"\n{ONE}')
    (tmp_path / "number.h").write_text("#define NUMBER 1\n")
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return notes


def one(folder):
    """What the source says, as a new process would find it."""
    native.library.cache_clear()
    folders.say.cache_clear()
    built = native.library(folder / "one.c")
    assert built is not None
    return built.one()


def kept(folder):
    return sorted((folder / "cache" / "fedavg" / "kernels").iterdir())


@needs_compiler
def test_a_build_is_kept_for_the_next_process(machine, tmp_path):
    assert one(tmp_path) == one(tmp_path) == 1
    assert machine.read_text() == "built\n"
    assert [path.suffix for path in kept(tmp_path)] == [".kernel"]


@needs_compiler
def test_what_a_source_includes_counts(machine, tmp_path):
    assert one(tmp_path) == 1
    (tmp_path / "number.h").write_text("#define NUMBER 2\n")
    assert one(tmp_path) == 2
    assert len(kept(tmp_path)) == 2


@needs_compiler
@pytest.mark.parametrize("damage", ["cut off", "flipped"])
def test_a_build_that_was_damaged_is_made_again(machine, tmp_path, damage, caplog):
    assert one(tmp_path) == 1
    (place,) = kept(tmp_path)
    whole = place.read_bytes()
    place.write_bytes(whole[:500] if damage == "cut off" else whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    assert one(tmp_path) == 1
    assert place.read_bytes() == whole
    assert machine.read_text() == "built\nbuilt\n"
    assert f"{place} is damaged: it is built again" in caplog.text


@needs_compiler
@pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX")
@pytest.mark.parametrize("part", ["cache/fedavg/kernels", "cache/fedavg", "cache"])
def test_a_way_that_others_can_change_is_not_trusted(machine, tmp_path, part, caplog):
    """Who can write to any folder on the way can put another in place of the last."""
    folder = tmp_path / "cache" / "fedavg" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / part).chmod(0o777)
    assert one(tmp_path) == one(tmp_path) == 1
    assert machine.read_text() == "built\nbuilt\n"
    assert not kept(tmp_path)
    assert f"built by each process: others can change {tmp_path / part}" in caplog.text


@needs_compiler
@pytest.mark.skipif(os.name != "posix", reason="needs links and the modes of POSIX")
def test_a_link_does_not_hide_the_way(machine, tmp_path):
    elsewhere = tmp_path / "open to all"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    (elsewhere / "cache").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(elsewhere / "cache")
    assert one(tmp_path) == 1
    assert not kept(tmp_path)


@needs_compiler
@pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX")
def test_where_no_folder_is_safe_there_are_no_kernels(machine, tmp_path, monkeypatch, caplog):
    everybody = tmp_path / "everybody"
    everybody.mkdir()
    everybody.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(everybody))
    monkeypatch.setattr(tempfile, "tempdir", str(everybody))
    native.library.cache_clear()
    assert native.library(tmp_path / "one.c") is None
    assert f"one.c is not used: others can change {everybody}; PyTorch's own operators" in caplog.text


@needs_compiler
def test_what_is_loaded_is_what_was_checked(machine, tmp_path, monkeypatch):
    """Somebody swaps the kept file between the look at it and its loading: the swap has no effect."""
    assert one(tmp_path) == 1
    (place,) = kept(tmp_path)
    look = kernels._read

    def swapped(path):
        found = look(path)
        place.write_bytes(b"something else")
        return found

    monkeypatch.setattr(kernels, "_read", swapped)
    assert one(tmp_path) == 1


@needs_compiler
def test_without_a_cache_it_is_built_all_the_same(machine, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert one(tmp_path) == 1


@needs_compiler
def test_a_source_that_does_not_build_is_as_good_as_none(machine, tmp_path):
    (tmp_path / "one.c").write_text("this is no C\n")
    native.library.cache_clear()
    assert native.library(tmp_path / "one.c") is None
    assert not kept(tmp_path)


# ---- instructions ----

HASWELL = frozenset({"avx", "avx2", "fma", "f16c", "bmi1", "bmi2"})
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "sse4_2"}


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (SKYLAKE, "avx512"),
        (SKYLAKE - {"avx512vl"}, "avx2"),  # as Xeon Phi
        (HASWELL, "avx2"),
        (frozenset({"avx"}), "native"),
        (frozenset(), "native"),
    ],
)
def test_a_processor_gets_the_best_that_it_can_do(features, level):
    assert recipe.best_level(features).name == level


X86 = platform.machine() == "x86_64" and recipe.best_level(kernels.features()) is not recipe.NATIVE


@needs_compiler
@pytest.mark.skipif(not X86, reason="needs a processor with AVX2")
def test_fewer_instructions_can_be_asked_for_and_the_engine_says_which(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "avx2")
    found = native.found(next(path for path in SOURCES if path.stem == "convolution"))
    assert found.library is not None
    assert found.library.lanes() == 8
    assert native.marked("graph with native convolution") == "graph with native convolution (avx2)"
    assert native.marked("graph") == "graph"


def test_instructions_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "avx1024")
    with pytest.raises(FedAvgError, match=r"FEDAVG_NATIVE: got 'avx1024'; expected 0 \(no kernels\)"):
        native.in_use()


# ---- kernels that came with the package ----


@pytest.fixture
def shipped(tmp_path, monkeypatch, machine):
    """A kernel of `one.c` that came with the package, built from another number than the source will say."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    monkeypatch.setattr(kernels, "PREBUILT", folder)
    source, level = tmp_path / "one.c", native.in_use()
    path = folder / recipe.kernel_name(source, level)
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.c").write_text("int one(void) { return 7; }\n")
    path.write_bytes(recipe.sealed(recipe.built(other / "one.c", level, ["cc"])))
    return path


@needs_compiler
def test_a_kernel_that_came_with_the_package_is_taken_without_a_compiler(shipped, machine, tmp_path, monkeypatch):
    assert one(tmp_path) == 7
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC")
    assert one(tmp_path) == 7
    assert machine.read_text() == ""
    assert native.found(tmp_path / "one.c").origin == f"comes with the package, for {native.in_use().name}"


@needs_compiler
def test_it_is_not_taken_for_a_source_that_was_changed(shipped, tmp_path):
    (tmp_path / "number.h").write_text("#define NUMBER 3\n")
    assert one(tmp_path) == 3


def test_a_header_of_another_folder_counts_and_one_that_nobody_includes_does_not(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source, header = tmp_path / "a" / "one.c", tmp_path / "b" / "number.h"
    source.write_text('#include <string.h>\n#include "../b/number.h"\n')
    header.write_text('#include "more.h"\n')
    digests = []
    for more in ("1", "2", "2"):
        (tmp_path / "b" / "more.h").write_text(more)
        digests.append(recipe.sources_digest(source, recipe.NATIVE))
        (tmp_path / "a" / "other.h").write_text(f"{digests}")
    assert digests[0] != digests[1]
    assert digests[1] == digests[2]


@needs_compiler
def test_it_is_not_taken_if_it_is_damaged(shipped, tmp_path, caplog):
    data = shipped.read_bytes()
    shipped.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert one(tmp_path) == 1
    assert f"{shipped} is damaged" in caplog.text


def test_without_a_compiler_it_says_so(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC")
    found = native.found(tmp_path / "one.c")
    assert found.library is None
    assert found.origin.startswith("no C compiler (CC, cc, gcc, clang), and the package has none for ")
