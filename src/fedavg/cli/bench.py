"""`fedavg bench`: seconds per round, start-up time and memory on a workload, beside the floor of the hardware."""

import json
from dataclasses import asdict

import click

from fedavg.machine import cores


@click.command()
@click.argument("workloads", nargs=-1, metavar="[W1 ... W10]...")
@click.option("--rounds", type=click.IntRange(3), help="Rounds to time [enough for a steady median].")
@click.option("--workers", type=click.IntRange(1), default=cores(), help="Worker processes [one per core].")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Turns of floor, run and PyTorch."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def bench(workloads: tuple[str, ...], rounds: int | None, workers: int, repeats: int, as_json: bool) -> None:
    """Measure speed on this machine, beside the bare products and plain PyTorch.

    Use an idle machine: other work distorts the figures.

    \b
    W1  MNIST 2NN, 10 clients of 600 a round, E=1, B=10
    W2  the same with B=∞
    W3  MNIST CNN, E=1, B=10
    W4  character LSTM, 10 clients x 50 sequences of 80, B=10
    W5  transformer of 2 layers and width 64, 10 clients of 20 to 60 sequences of 32, B=10
    W6  ResNet with group norms, 10 clients of 30 to 90 images of 32 x 32, B=10
    W7  W1 with clients of 101 to 996 examples, E=5
    W8  W1 with momentum 0.9
    W9  frozen transformer of 4.8 million parameters with adapters of rank 8, clients as in W5
    W10 2NN, 1,000 of 10,000 clients of 1 to 5 examples
    """
    from fedavg.bench.measure import measure
    from fedavg.bench.workloads import ROUNDS
    from fedavg.errors import PlanError

    for name in workloads:
        if name not in ROUNDS:
            raise PlanError(f"unknown workload '{name}'; expected one of {', '.join(ROUNDS)}")
    results = []
    for name in workloads or tuple(ROUNDS):
        result = measure(name, rounds or ROUNDS[name], workers, repeats)
        results.append(asdict(result))
        click.echo(
            f"{name}: {result.s_per_round:.4f} s/round, {result.ratio_to_floor:.2f} x the floor of "
            f"{result.floor_s_per_round:.4f}; plain PyTorch takes {result.plain_ratio:.2f} x as long, "
            f"{result.plain_cold_ratio:.2f} x in the first rounds, {result.plain_cpu_ratio:.2f} x on the cores; "
            f"start to end of round 1 {result.startup_s:.2f} s, plain {result.plain.startup_s:.2f} s; "
            f"peak memory {result.peak_rss_mb:.0f} MB ({result.peak_pss_mb:.0f} MB without double counting); "
            f"{workers} workers",
            err=as_json,
        )
    if as_json:
        click.echo(json.dumps(results[0] if len(results) == 1 else results, indent=2))
