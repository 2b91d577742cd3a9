"""Where a plan may come from besides Python: a preset by its name, or a TOML file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from fedavg.errors import PlanError
from fedavg.plan.plan import Plan, make_plan

#: What `fedavg run NAME` starts from; every option can still be changed.
PRESETS: dict[str, dict[str, object]] = {
    "mnist-2nn": {"task": "mnist-2nn", "data": "mnist"},
    "mnist-cnn": {"task": "mnist-cnn", "data": "mnist"},
    "shakespeare-lstm": {"task": "shakespeare-lstm", "data": "shakespeare", "E": 5, "lr": 1.47},
    "cifar-cnn": {"task": "cifar-cnn", "data": "cifar10", "E": 5, "B": 50, "lr": 0.1, "lr_decay": 0.99},
    "posts-lstm": {"task": "posts-lstm", "data": "posts", "C": 0.003, "B": 8, "lr": 9.0},
}


def load_plan(source: str, changes: Mapping[str, object]) -> Plan:
    """A plan from a preset's name or a TOML file, with changes."""
    values = source_values(source)
    if "sweep" in values:
        raise PlanError(f"{source} describes a sweep ([sweep]), not one run; expected: fedavg sweep {source}")
    return make_plan({**values, **changes}, source)


def source_values(source: str) -> Mapping[str, object]:
    """The options that a preset or a TOML file sets, as they stand there."""
    if source in PRESETS:
        return PRESETS[source]
    path = Path(source)
    if path.suffix != ".toml" and not path.is_file():
        raise PlanError(f"got '{source}'; expected a preset ({', '.join(PRESETS)}) or a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}; expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is not TOML: {error}") from None
