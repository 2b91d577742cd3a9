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
    built = native.library(folder / "one.c")
    assert built is not None
    return built.one()


def kept(folder):
    return sorted((folder / "cache" / "fedavg" / "kernels").iterdir())


@needs_compiler
def test_a_build_is_kept_for_the_next_process(machine, tmp_path):
    assert one(tmp_path) == one(tmp_path) == 1
    assert machine.read_text() == "built\n"
    assert [path.suffix for path in kept(tmp_path)] == [".so"]


@needs_compiler
def test_what_a_source_includes_counts(machine, tmp_path):
    assert one(tmp_path) == 1
    (tmp_path / "number.h").write_text("#define NUMBER 2\n")
    assert one(tmp_path) == 2
    assert len(kept(tmp_path)) == 2


@needs_compiler
def test_a_build_that_was_cut_off_is_made_again(machine, tmp_path):
    (tmp_path / "cache" / "fedavg" / "kernels").mkdir(parents=True, mode=0o700)
    native.library.cache_clear()
    place = (
        tmp_path / "cache" / "fedavg" / "kernels" / f"one-{native._digest(tmp_path / 'one.c', [os.environ['CC']])}.so"
    )
    place.write_bytes(b"")
    assert one(tmp_path) == 1
    assert place.stat().st_size > 0
    assert machine.read_text() == "built\n"


@needs_compiler
@pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX")
def test_a_folder_that_others_can_write_to_is_not_trusted(machine, tmp_path):
    folder = tmp_path / "cache" / "fedavg" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert one(tmp_path) == one(tmp_path) == 1
    assert machine.read_text() == "built\nbuilt\n"
    assert not kept(tmp_path)


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
