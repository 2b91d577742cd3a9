"""What every metric must do."""

from typing import Any

import torch

from fedavg import trees
from fedavg.metrics import Metric, checked_sums
from fedavg.testing.problem import CheckFailed, check_text, require


def check_metric(metric: Metric, output: Any = None, y: Any = None) -> None:
    """Its value on a set is that of the sums of the set's pieces, however the set is cut.

    `output` and `y` are what a module gave and the targets, 8 rows or more; else 60 rows of three classes are made up.

    >>> from fedavg.metrics import MacroF1
    >>> check_metric(MacroF1(3))
    """
    what = f"metric {metric!r}"
    require(isinstance(metric, Metric), f"{what} is not a fedavg.Metric; derive its class from it")
    require(bool(getattr(metric, "name", "")), f"{what} has no name; give its class one: name = 'recall'")
    better = getattr(metric, "higher_is_better", "unsaid")
    require(better in (True, False, None), f"{what} does not say which way is better; expected higher_is_better = True")
    check_text(metric, Metric, what)
    bound = metric.bind(torch.nn.functional.cross_entropy)
    if output is None:
        rng = torch.Generator().manual_seed(1)
        output, y = torch.randn(60, 3, generator=rng), torch.randint(0, 3, (60,), generator=rng)
    whole = _sums(bound, output, y, what)
    require(torch.equal(whole, _sums(bound, output, y, what)), f"{what} gave two answers; expected the same each time")
    for cut in (1, trees.length(y) // 3):
        pieces = [slice(0, cut), slice(cut, None)]
        parts = [_sums(bound, trees.rows(output, piece), trees.rows(y, piece), what) for piece in pieces]
        require(
            torch.allclose(whole, parts[0] + parts[1], rtol=1e-5, atol=1e-6),
            f"{what}: the sums of {cut} rows and of the others add up to {(parts[0] + parts[1]).tolist()}; expected "
            f"{whole.tolist()}, those of all rows. Give sums, and do the division in `value`",
        )
    value = bound.value(whole)
    require(isinstance(value, float), f"{what}: `value` gave {type(value).__name__}; expected a float: float(...)")


def _sums(metric: Metric, output: Any, y: Any, what: str) -> torch.Tensor:
    try:
        return checked_sums(metric, output, y)
    except Exception as error:
        raise CheckFailed(f"{what}: {error}") from error
