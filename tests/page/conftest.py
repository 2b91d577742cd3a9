import shutil
import sys
from pathlib import Path

import pytest

# A live fleet is led by hand, as in the tests of the fleet itself.
sys.path.append(str(Path(__file__).parents[1] / "fleets" / "http"))


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, without a window; tests are skipped where there is none.

    Not for longer than a module: while it is open, Playwright's event loop counts as running in this thread, and
    `asyncio.run` fails in any other test.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ]  # fmt: skip
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=flags)
        yield found
        found.close()
