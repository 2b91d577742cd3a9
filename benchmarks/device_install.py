"""What a device needs: the size of a new environment with `fedavg[device]`, and the memory of a device that trains.

python benchmarks/device_install.py docs/results/device_install.json

The environment is made by pip with constraints.txt, without the copy of MNIST. The device is `fedavg join` in it, the
only client of a server run by this interpreter, with 600 examples of MNIST and the 2NN; its memory is read when a round
is committed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from fedavg.data import load

ROOT = Path(__file__).parents[1]
ROUNDS = 3
#: Folders of PyTorch, some only with CUDA.
OF_TORCH = ("torch", "nvidia", "triton")


def main(record: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        scripts = _installed(place / "environment")
        sizes = _sizes(place / "environment")
        memory = _of_a_device(place, scripts)
    found = {
        "command": f"python benchmarks/device_install.py {record}",
        "python": sys.version.split()[0],
        **sizes,
        **memory,
    }
    record.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(record.read_text())


def _installed(environment: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    scripts = environment / "bin"
    pip = [scripts / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    without_mnist = os.environ | {"FEDAVG_BUILD_MNIST": "0"}
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", f"{ROOT}[device]"], check=True, env=without_mnist)
    return scripts


def _sizes(environment: Path) -> dict[str, object]:
    """Megabytes on disk, in total and of the largest packages."""
    packages = next(environment.glob("lib/python*/site-packages"))
    by_name = {each.name: _megabytes(each) for each in packages.iterdir() if each.is_dir()}
    whole, torch = _megabytes(environment), sum(by_name.get(name, 0.0) for name in OF_TORCH)
    largest = sorted(by_name, key=by_name.__getitem__, reverse=True)[:6]
    return {
        "installed_mb": whole,
        "without_torch_and_its_libraries_mb": round(whole - torch, 1),
        "fedavg_mb": by_name["fedavg"],
        "largest_mb": {name: by_name[name] for name in largest},
    }


def _megabytes(path: Path) -> float:
    said = subprocess.run(["du", "-s", "--block-size=1000", path], check=True, capture_output=True, text=True)
    return round(int(said.stdout.split()[0]) / 1000, 1)


def _of_a_device(place: Path, scripts: Path) -> dict[str, object]:
    (place / "plan.toml").write_text(
        f'task = "mnist-2nn"\ndata = "none"\nclients = 1\nC = 1.0\nE = 1\nB = 10\nlr = 0.1\nrounds = {ROUNDS + 100}\n'
    )
    part = load("mnist", None, 100, 0, None).client(0)
    np.savez(place / "own.npz", x=np.asarray(part.x), y=np.asarray(part.y))
    url = "http://127.0.0.1:28443"
    serve = [sys.executable, "-m", "fedavg", "serve", place / "plan.toml", "--insecure", "--listen", "127.0.0.1:28443",
             "--run-dir", place / "run"]  # fmt: skip
    join = [scripts / "fedavg", "join", url, "--insecure", "--data", place / "own.npz", "--task", "mnist-2nn",
            "--token-file", place / "run" / "join-token", "--state", place / "state", "--charging", "yes",
            "--unmetered", "yes"]  # fmt: skip
    with (place / "server.log").open("wb") as log:
        server = subprocess.Popen(serve, stderr=log, stdout=log)
        try:
            _wait(lambda: _committed(url) is not None)
            device = subprocess.Popen(join, stderr=log, stdout=log)
            try:
                _wait(lambda: (_committed(url) or 0) >= ROUNDS)
                return _memory(device.pid)
            finally:
                device.kill()
                device.wait()
        finally:
            server.kill()
            server.wait()


def _memory(pid: int) -> dict[str, object]:
    """VmRSS, and its private part (the rest are pages of files, which other processes may share)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kilobytes = {name: int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM", "RssAnon")}
    return {
        "resident_mb": round(kilobytes["VmRSS"] * 1.024 / 1000, 1),
        "resident_of_its_own_mb": round(kilobytes["RssAnon"] * 1.024 / 1000, 1),
        "peak_mb": round(kilobytes["VmHWM"] * 1.024 / 1000, 1),
    }


def _committed(url: str) -> int | None:
    try:
        with urllib.request.urlopen(f"{url}/v1/status", timeout=5) as answer:
            return int(json.load(answer)["committed"])
    except OSError:
        return None


def _wait(condition) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + 300
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the device took part in no round within 300 s")
        time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
