"""The page as a user starts and opens it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

#: A busy machine is slow, not wrong.
PATIENCE_MS = 60_000


@contextmanager
def served(*arguments: object) -> Iterator[str]:
    """`fedavg page` until the end of the block; gives the address that it prints."""
    command = [sys.executable, "-m", "fedavg", "page", *map(str, arguments), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield line.split()[-1]
        finally:
            process.terminate()


@contextmanager
def opened(browser: Any, address: str, path: str = "", **options: Any) -> Iterator[Any]:
    """A tab that must not log an error, nor ask anything of another place than the one it came from."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    tab = context.new_page()
    faults: list[str] = []
    tab.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda request: _check_place(request.url, address, faults))
    tab.goto(address + path)
    tab.wait_for_selector("main[data-ready]")
    try:
        yield tab
        assert faults == []
    finally:
        context.close()


def _check_place(url: str, address: str, faults: list[str]) -> None:
    if not url.startswith("data:") and urlsplit(url)[:2] != urlsplit(address)[:2]:
        faults.append(f"asked {url}")


def check_accessible(tab: Any) -> None:
    """axe finds nothing, and the page does not scroll sideways."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
