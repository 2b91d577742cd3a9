"""What the doctor says of this machine, and of one that lacks something."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import fedavg
import programs
from fedavg import native
from fedavg.cli import cli
from fedavg.doctor import examine
from fedavg.machine import cores
from toys import put

KERNELS = sorted(f"kernel {path.stem}" for path in Path(fedavg.__file__).parent.rglob("*.c"))


def by_topic(findings):
    return {finding["topic"]: finding for finding in findings}


def test_it_looks_at_all_that_a_run_depends_on():
    said = {finding.topic: finding.found for finding in examine()}
    assert {"processor", "cores", "memory", "python", "pytorch", "threads", "compiler", "workers", "data"} <= set(said)
    assert sorted(topic for topic in said if topic.startswith("kernel ") and topic != "kernel cache") == KERNELS
    assert said["cores"].startswith(f"{cores()} used")
    assert torch.__version__ in said["pytorch"]
    assert "mnist" in said["data"]


def test_the_command_marks_what_can_be_made_better(tmp_path):
    shown = CliRunner().invoke(cli, ["doctor", "--data-dir", str(tmp_path)], catch_exceptions=False).output
    [row] = [row for row in shown.splitlines() if row.startswith("! data")]
    assert f"{tmp_path} has nothing; built in: mnist" in row
    assert "-> fedavg data get NAME fetches" in shown


def doctor(**changes):
    environment = {key: value for key, value in os.environ.items() if key not in ("CC", native.VARIABLE)} | changes
    return programs.fedavg("doctor", "--json", env=environment)


def test_without_a_compiler_it_says_what_is_slower_and_what_to_do(tmp_path):
    findings = by_topic(json.loads(doctor(PATH=str(tmp_path), HOME=str(tmp_path)).stdout))
    if any(native.found(path).origin.startswith("comes with") for path in Path(fedavg.__file__).parent.rglob("*.c")):
        pytest.skip("this installation has its kernels")
    assert findings["compiler"]["remedy"] == "install gcc or clang"
    assert {bool(findings[name]["remedy"]) for name in KERNELS} == {True}
    assert findings["kernel cache"]["found"] == str(tmp_path / ".cache" / "fedavg" / "kernels")


def test_a_compiler_that_fails_is_told_of(tmp_path):
    put(tmp_path / "cc", b"#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o700)
    finding = by_topic(json.loads(doctor(CC=str(tmp_path / "cc")).stdout))["compiler"]
    assert finding == {
        "topic": "compiler",
        "found": f"{tmp_path / 'cc'}: it fails",
        "remedy": "let CC name a C compiler that works",
    }


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_it_says_why_there_are_fewer_cores_than_the_machine_has():
    first = min(os.sched_getaffinity(0))
    confined = partial(os.sched_setaffinity, 0, {first})
    findings = by_topic(json.loads(programs.fedavg("doctor", "--json", prepare=[confined]).stdout))
    assert findings["cores"]["found"].startswith("1 used")
    if (os.cpu_count() or 1) > 1:
        assert "this process may run on 1 (affinity)" in findings["cores"]["found"]


def test_kernels_for_instructions_that_nobody_has_are_refused_without_a_traceback():
    answer = doctor(FEDAVG_NATIVE="mmx")
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: FEDAVG_NATIVE: got 'mmx'; expected 0")
