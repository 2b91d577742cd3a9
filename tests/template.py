"""Prepares the process from which commands and devices of the tests are forked (see programs.py).

Everything is imported, and garbage is collected: in a forked process, a collector that visits every object would copy
every page.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import fedavg.cli.fleet
import fedavg.cli.paper
import fedavg.cli.report
import fedavg.cli.run
import fedavg.fleets.http.device.eligibility
import fedavg.fleets.http.device.vouching
import fedavg.fleets.local
import fedavg.programs.device
import fedavg.programs.extension
import fedavg.programs.replica
import fedavg.programs.service
import fedavg.runner  # noqa: F401
from fedavg.engine.memory import settle_before_fork

#: What servers and devices import when they first need it; not all of it need be installed.
LATER = (
    "anyio._backends._asyncio",
    "dp_accounting",
    "encodings.idna",
    "httpcore2",
    "numpy.ctypeslib",
    "numpy.ma",
    "psycopg",
    "rich._emoji_codes",
    "uvicorn.lifespan.off",
    "uvloop",
)
for name in LATER:
    with suppress(ImportError):
        import_module(name)

sys.path.append(str(Path(__file__).parent / "fleets" / "http"))
import_module("harness")

os.environ.pop("PYTHONPATH")
settle_before_fork()
