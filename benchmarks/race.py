"""Times two ways to do the same thing, in turn: machines are noisy, so only ratios within a turn are kept."""

import time
from collections.abc import Callable
from statistics import median

Run = Callable[[], object]


def race(slow: tuple[str, Run], fast: tuple[str, Run], repeats: int) -> dict[str, float]:
    """Milliseconds of both, by their names, and the median of their ratios; the first turn warms up."""
    times = [(timed(slow[1]), timed(fast[1])) for _ in range(repeats + 1)][1:]
    by_name = zip((slow[0], fast[0]), zip(*times, strict=True), strict=True)
    medians = {f"{name}_ms": round(median(values), 3) for name, values in by_name}
    return medians | {"ratio": round(median(a / b for a, b in times), 2)}


def timed(run: Run) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)
