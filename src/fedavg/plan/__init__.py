"""`Plan`: one frozen description of a run, with its options, the rates by round and the identity of what it names."""

from fedavg.plan.plan import Plan, check_plan, help_of, make_plan, option_names, part_options
from fedavg.plan.presets import PRESETS, load_plan, source_values

__all__ = [
    "PRESETS",
    "Plan",
    "check_plan",
    "help_of",
    "load_plan",
    "make_plan",
    "option_names",
    "part_options",
    "source_values",
]
