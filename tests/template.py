"""What the process has done that commands and devices of the tests are forked from (see programs.py).

All is imported, and what is garbage is gone: a collector that looked at every object would copy every page, in every
one of them.
"""

import os
import sys
from pathlib import Path

import numpy.ma  # noqa: F401
import psycopg  # noqa: F401

import fedavg.cli.fleet
import fedavg.cli.paper
import fedavg.cli.report
import fedavg.cli.run
import fedavg.fleets.local
import fedavg.programs.device
import fedavg.programs.replica
import fedavg.runner  # noqa: F401
from fedavg.engine.memory import settle_before_fork

sys.path.append(str(Path(__file__).parent / "fleets" / "http"))
import harness  # noqa: F401

os.environ.pop("PYTHONPATH")
settle_before_fork()
