"""`fedavg compare` and `fedavg plot`: several runs side by side."""

import json
from pathlib import Path
from typing import Any

import click

from fedavg.cli.completion import complete_run
from fedavg.study.axes import AXES

_runs = click.argument(
    "run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...", shell_complete=complete_run
)


@click.command()
@_runs
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def compare(run_dirs: tuple[Path, ...], as_json: bool) -> None:
    """Show how the plans of some runs differ, and the result of each run.

    \b
    fedavg compare runs/a runs/b
    """
    from fedavg.study.compare import comparison, read_run

    rows = comparison([read_run(path) for path in run_dirs])
    if as_json:
        click.echo(json.dumps({"runs": rows}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=box.SIMPLE)
    for name in names:
        table.add_column(name.replace("_", " "), justify="left" if name in ("run", "status") else "right")
    for row in rows:
        table.add_row(*(_shown(name, row.get(name)) for name in names))
    Console(width=max(120, Console().width)).print(table)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name.startswith("bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@click.command()
@_runs
@click.option(
    "--by",
    type=click.Choice(list(AXES)),
    default="round",
    show_default=True,
    help="The horizontal axis.",
)
@click.option("--metric", default=None, help="What is drawn, as in loss or clients.accuracy.p10 [the watched metric].")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("runs.png"), show_default=True)
def plot(run_dirs: tuple[Path, ...], by: str, metric: str | None, out: Path) -> None:
    """Draw the curves of some runs in one picture (PNG, SVG or PDF, by the name of --out).

    \b
    fedavg plot runs/a runs/b --by bytes --out bytes.png
    """
    from fedavg.study.compare import read_run
    from fedavg.study.plot import plot_runs

    plot_runs([read_run(path) for path in run_dirs], out, by, metric)
    click.echo(f"wrote {out}")
