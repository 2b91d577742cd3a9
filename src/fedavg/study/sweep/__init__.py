"""A sweep: one plan, varied along axes and over seeds; one table, one figure. Built on `campaign`."""

from fedavg.study.sweep.run import SweepResult, sweep
from fedavg.study.sweep.tally import Entry

__all__ = ["Entry", "SweepResult", "sweep"]
