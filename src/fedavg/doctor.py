"""What this machine gives a run, and why: for `fedavg doctor`.

Looks, and changes nothing but the cache of kernels, which it fills as a run would.
"""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Final

import torch

from fedavg import machine, native
from fedavg.data import DATASETS
from fedavg.data.download import present
from fedavg.data.location import VARIABLE as DATA_VARIABLE
from fedavg.data.location import data_directory
from fedavg.errors import FedAvgError
from fedavg.fleets.start import method_of
from fedavg.native.folders import own_folder
from fedavg.native.kernels import instructions
from fedavg.plan import Plan

#: What `pip install fedavg[...]` adds: a module of each.
EXTRAS: Final = {
    "plots": "matplotlib", "tables": "pyarrow", "huggingface": "datasets", "server": "starlette", "postgres": "psycopg",
    "secagg": "cryptography", "privacy": "dp_accounting",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `remedy` says what to do about it; empty if all is well."""

    topic: str
    found: str
    remedy: str = ""


def examine(data_dir: Path | None = None) -> list[Finding]:
    return [
        _processor(),
        _cores(),
        _memory(),
        Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *_pytorch(),
        _compiler(),
        *_kernels(),
        _cache(),
        _workers(),
        *_data(data_dir),
        _extras(),
    ]


def _processor() -> Finding:
    names = [row.partition(":")[2].strip() for row in instructions() if row.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    level = native.in_use()
    if level is None:
        return Finding("processor", f"{name}; kernels are turned off", f"unset {native.VARIABLE} to use them")
    forced = f" (asked for by {native.VARIABLE})" if os.environ.get(native.VARIABLE) else ""
    return Finding("processor", f"{name}; kernels use {level.name}{forced}")


def _cores() -> Finding:
    found = machine.look_at_cores()
    why = [f"the machine has {found.machine}"]
    if found.allowed < found.machine:
        why.append(f"this process may run on {found.allowed} (affinity)")
    if found.quota < inf:
        why.append(f"its control group may use {found.quota:g} of them (CPU quota)")
    return Finding("cores", f"{found.usable} used: {', '.join(why)}")


def _memory() -> Finding:
    total, free = machine.memory_bytes()
    if total == inf:
        return Finding("memory", "unknown on this system")
    limit = machine.memory_limit()
    capped = f", a control group allows {limit / 1e9:.1f} GB" if limit < inf else ""
    return Finding("memory", f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB free for this process{capped}")


def _pytorch() -> list[Finding]:
    parts = [name for name, there in _libraries().items() if there]
    capability = torch.backends.cpu.get_cpu_capability()
    cuda = f"CUDA {torch.version.cuda}" if torch.cuda.is_available() else "no CUDA"
    built = Finding("pytorch", f"{torch.__version__} ({', '.join([*parts, capability, cuda])})")
    threads = f"{torch.get_num_threads()} in this process; a worker has 1, whatever OMP_NUM_THREADS says"
    return [built, Finding("threads", threads)]


def _libraries() -> dict[str, bool]:
    return {
        "MKL": torch.backends.mkl.is_available(),
        "oneDNN": torch.backends.mkldnn.is_available(),
        "OpenMP": torch.backends.openmp.is_available(),
    }


def _compiler() -> Finding:
    command = native.compiler()
    if command is None:
        return Finding("compiler", "none (CC, cc, gcc, clang)", "" if _all_shipped() else "install gcc or clang")
    try:
        asked = [*command, "--version"]
        said = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or "it fails"
        return Finding("compiler", f"{' '.join(command)}: {reason}", "let CC name a C compiler that works")
    return Finding("compiler", f"{' '.join(command)}: {said.splitlines()[0] if said else 'it says no version'}")


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.rglob("*.c"))


def _all_shipped() -> bool:
    return all(native.library(source) is not None for source in _sources())


def _kernels() -> list[Finding]:
    rows = []
    for source in _sources():
        found = native.found(source)
        fallback = "PyTorch's own operators run in its place, slower"
        rows.append(Finding(f"kernel {source.stem}", found.origin, "" if found.library else fallback))
    return rows


def _cache() -> Finding:
    folder = own_folder()
    if folder is None:
        return Finding("kernel cache", "none", "kernels are built by each process: make the cache folder yours alone")
    return Finding("kernel cache", str(folder))


def _workers() -> Finding:
    able, chosen = get_all_start_methods(), method_of(Plan())
    others = ", ".join(method for method in able if method != chosen)
    return Finding(
        "workers", f"{machine.cores()}, started by {chosen}" + (f" (--start-method: {others})" if others else "")
    )


def _data(data_dir: Path | None) -> list[Finding]:
    try:
        folder = data_directory(data_dir)
    except FedAvgError as error:
        return [Finding("data", "no folder", str(error))]
    filed = {name: dataset.files for name, dataset in DATASETS.items() if dataset.files}
    here = [name for name, files in filed.items() if all(present(file, folder) for file in files)]
    built_in = [name for name, dataset in DATASETS.items() if dataset.built_in]
    named = f" ({DATA_VARIABLE})" if data_dir is None and os.environ.get(DATA_VARIABLE) else ""
    missing = [name for name in filed if name not in here and name not in built_in]
    remedy = f"fedavg data get NAME fetches {', '.join(missing)}" if missing else ""
    there = f"{folder}{named} has {', '.join(here) or 'nothing'}; built in: {', '.join(built_in)}"
    return [Finding("data", there, remedy)]


def _extras() -> Finding:
    missing = [name for name, module in EXTRAS.items() if find_spec(module) is None]
    have = [name for name in EXTRAS if name not in missing]
    remedy = f"pip install 'fedavg[{','.join(missing)}]' adds {', '.join(missing)}" if missing else ""
    return Finding("extras", ", ".join(have) or "none", remedy)
