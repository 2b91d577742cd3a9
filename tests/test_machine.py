"""Cores and memory as the kernel grants them: fake files of control groups, and a real `taskset`."""

import os
import shutil
import subprocess
import sys
from math import inf

import pytest

from fedavg.machine import Cores, cores, cpu_quota, look_at_cores, memory_bytes, memory_limit
from toys import put


def fake_proc(tmp_path, membership, mounts, **files):
    """A /proc whose control groups are mounted below tmp_path; files by their path, with `__` for a slash."""
    proc = tmp_path / "proc"
    put(proc / "self" / "cgroup", membership.encode())
    rows = [f"3{n} 23 0:28 {root} {tmp_path / place} rw - {kind}" for n, (root, place, kind) in enumerate(mounts)]
    put(proc / "self" / "mountinfo", "\n".join(rows).replace("with space", "with\\040space").encode())
    for name, text in files.items():
        put(tmp_path / name.replace("__", "/").replace("_DOT_", "."), text.encode())
    return proc


V2 = [("/", "cg", "cgroup2 cgroup2 rw")]
V1 = [("/", "cg/cpu", "cgroup cgroup rw,cpu,cpuacct"), ("/", "cg/memory", "cgroup cgroup rw,memory")]


def test_v2_has_quota_and_period_in_one_file(tmp_path):
    files = {"cg__job__cpu_DOT_max": "150000 100000\n", "cg__job__memory_DOT_max": "1048576\n"}
    proc = fake_proc(tmp_path, "0::/job\n", V2, **files)
    assert cpu_quota(proc) == 1.5
    assert memory_limit(proc) == 1048576


def test_the_least_of_a_group_and_those_above_it_counts(tmp_path):
    files = {"cg__a__cpu_DOT_max": "50000 100000\n", "cg__a__b__cpu_DOT_max": "max 100000\n", "cg__cpu_DOT_max": "7 1"}
    proc = fake_proc(tmp_path, "0::/a/b\n", V2, **files)
    assert cpu_quota(proc) == 0.5


def test_v1_has_two_files_and_minus_one_is_no_limit(tmp_path):
    files = {
        "cg__cpu__job__cpu_DOT_cfs_quota_us": "300000\n", "cg__cpu__job__cpu_DOT_cfs_period_us": "100000\n",
        "cg__cpu__cpu_DOT_cfs_quota_us": "-1\n", "cg__cpu__cpu_DOT_cfs_period_us": "100000\n",
        "cg__memory__job__memory_DOT_limit_in_bytes": "9223372036854771712\n",
    }  # fmt: skip
    proc = fake_proc(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n", V1, **files)
    assert cpu_quota(proc) == 3
    assert memory_limit(proc) == inf


def test_a_container_that_is_called_by_its_name_on_the_host_finds_its_own_group(tmp_path):
    """The mount shows the group itself as its root, and the name of the host's group leads nowhere from there."""
    files = {"cg__cpu__cpu_DOT_cfs_quota_us": "200000", "cg__cpu__cpu_DOT_cfs_period_us": "100000"}
    proc = fake_proc(tmp_path, "3:cpu,cpuacct:/docker/4f\n", [("/docker/4f", *V1[0][1:])], **files)
    assert cpu_quota(proc) == 2
    proc = fake_proc(tmp_path, "3:cpu,cpuacct:/../4f\n", [("/elsewhere", *V1[0][1:])], **files)
    assert cpu_quota(proc) == 2


def test_a_mount_may_have_a_blank_in_its_path(tmp_path):
    proc = fake_proc(
        tmp_path, "0::/\n", [("/", "with space", "cgroup2 cgroup2 rw")], **{"with space__cpu_DOT_max": "100 50"}
    )
    assert cpu_quota(proc) == 2


@pytest.mark.parametrize("text", ["max 100000\n", "", "junk", "0 100000"])
def test_what_is_no_quota_is_no_limit(tmp_path, text):
    assert cpu_quota(fake_proc(tmp_path, "0::/\n", V2, cg__cpu_DOT_max=text)) == inf


def test_where_there_is_no_proc_there_is_no_limit(tmp_path):
    assert cpu_quota(tmp_path) == memory_limit(tmp_path) == inf
    assert memory_bytes(tmp_path) == (inf, inf)


def test_free_memory_is_at_most_the_limit(tmp_path):
    proc = fake_proc(tmp_path, "0::/\n", V2, cg__memory_DOT_max="1024000\n")
    put(proc / "meminfo", b"MemTotal:       4000 kB\nMemFree:         1 kB\nMemAvailable:   2000 kB\n")
    assert memory_bytes(proc) == (4096000, 1024000)


@pytest.mark.parametrize(
    ("allowed", "quota", "usable"), [(8, inf, 8), (8, 2.0, 2), (8, 1.5, 2), (1, 4.0, 1), (4, 0.2, 1), (3, 3.0, 3)]
)
def test_the_cores_to_use(allowed, quota, usable):
    assert Cores(8, allowed, quota).usable == usable


def test_no_more_cores_than_the_process_may_run_on():
    assert 1 <= cores() <= look_at_cores().allowed <= (os.cpu_count() or 1)


@pytest.mark.skipif(not shutil.which("taskset"), reason="needs taskset")
def test_under_taskset_a_plan_has_as_many_workers_as_cores_that_are_left():
    first = min(os.sched_getaffinity(0))
    asked = "from fedavg import Plan; from fedavg.machine import cores; print(cores(), Plan().workers)"
    answer = subprocess.run(
        ["taskset", "-c", str(first), sys.executable, "-c", asked], check=True, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["1", "1"]
