"""`make release-check`: what would be published works for somebody who has only that.

Builds sdist and wheel, has twine check their metadata, installs each into a new environment outside of this folder, and
runs the README's Python examples and its first command there. Needs an index or a cache of packages that pip can reach.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "plots,privacy,secagg"


def call(*words: object, cwd: Path = ROOT) -> None:
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], cwd=cwd, check=True)


def examples() -> str:
    """The README's Python, as one program."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def try_archive(archive: Path, folder: Path) -> None:
    folder.mkdir()
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{archive}[{EXTRAS}]", cwd=folder)
    (folder / "readme.py").write_text(f"if __name__ == '__main__':\n{_indented(examples())}", encoding="utf-8")
    call(python, "readme.py", cwd=folder)
    call(environment / "bin" / "fedavg", "run", "mnist-2nn", "--rounds", "2", "--quiet", cwd=folder)
    call(environment / "bin" / "fedavg", "--version", cwd=folder)


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT)
        archives = sorted((folder / "dist").iterdir())
        call(sys.executable, "-m", "twine", "check", "--strict", *archives)
        for archive in archives:
            try_archive(archive, folder / archive.suffix.strip("."))
    print("the release is good")


if __name__ == "__main__":
    main()
