"""Writes a lock file: every package that an installation needs, at the version of constraints.txt, with its SHA-256.

    python deploy/lock.py server,postgres,plots hatchling > deploy/server.lock      what the image of a server installs
    python deploy/lock.py device hatchling > deploy/device.lock                     what the image of a device installs
    python deploy/lock.py dev hatchling > deploy/dev.lock                           what tests and checks run on

pip itself resolves (`--dry-run --report`); nothing is installed. The hashes are of the archives for the machine and the
Python that this runs on (Linux on x86-64, Python 3.11, as in the Dockerfile): run it there again after each change of
constraints.txt. No address of an index is written.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def resolved(extras: str, more: list[str]) -> list[dict]:
    """What pip would install, as its report has it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report"]
        arguments = ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]", *more]
        subprocess.run([*command, str(report), *arguments], check=True, stdout=sys.stderr)
        return json.loads(report.read_text())["install"]


def locked(package: dict) -> str:
    name, version = package["metadata"]["name"].lower(), package["metadata"]["version"]
    digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={version} --hash=sha256:{digest}"


def main() -> None:
    extras, *more = sys.argv[1:] or ["server,postgres,plots"]
    packages = [package for package in resolved(extras, more) if package["metadata"]["name"] != "fedavg"]
    print(f"# Made by: python deploy/lock.py {extras} {' '.join(more)}".rstrip())
    print("# For Linux on x86-64 with Python 3.11. Install with: pip install --require-hashes -r")
    print("\n".join(sorted(map(locked, packages))))


if __name__ == "__main__":
    main()
