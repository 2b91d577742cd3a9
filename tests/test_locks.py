"""Locks between real processes, and by the functions of Windows as far as they can be stood in for."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from fedavg.locks import PLACE, try_lock, wait_for_lock

HOLDER = """
import os, sys
from fedavg.locks import try_lock
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
print(try_lock(file, shared=len(sys.argv) > 2), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock until it is killed."""
    started = []

    def hold(*options):
        command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock"), *options]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "True\n"
        return started[-1]

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def file(tmp_path):
    opened = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_only_one_process_has_a_lock_and_its_death_releases_it(holder, file):
    other = holder()
    assert not try_lock(file)
    other.kill()
    wait_for_lock(file)
    assert try_lock(file)


def test_a_shared_lock_is_shared_with_others_of_its_kind(holder, file):
    holder("shared")
    assert try_lock(file, shared=True)
    assert not try_lock(file)


def test_on_windows_a_byte_beyond_the_content_is_locked(monkeypatch, file):
    taken = []

    def locking(handle, mode, size):
        taken.append((os.lseek(handle, 0, os.SEEK_CUR), mode, size))
        if len(taken) in (1, 2):
            raise OSError("taken")

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    assert not try_lock(file)
    began = time.monotonic()
    wait_for_lock(file)
    assert time.monotonic() > began
    assert taken == [(PLACE, 2, 1)] * 3


def test_where_nothing_can_be_locked_nobody_is_kept_out(monkeypatch, file):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    assert try_lock(file)
