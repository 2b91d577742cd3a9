"""`fedavg personalise`: what fine-tuning the model of a run gives each client."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedavg.cli.completion import complete_run
from fedavg.cli.run import chosen_fleet, find_own_code, fleet_options

if TYPE_CHECKING:
    from fedavg.study.personalise import Personalised


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path), shell_complete=complete_run)
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True, help="Local epochs of fine-tuning.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Learning rate [that of the run's last round].")
@click.option("--batch", type=click.IntRange(1), help="Batch size [that of the run's last round].")
@click.option(
    "--share",
    type=click.FloatRange(0, 0.9, min_open=True),
    default=0.2,
    show_default=True,
    help="Share of each client's examples to judge on, if the run was not made with --holdout.",
)
@click.option("--workers", default=None, metavar="VALUE", help="Processes that train clients [the plan's].")
@click.option("--data-dir", default=None, metavar="VALUE", help="Where data sets are kept [the plan's].")
@fleet_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, with every client.")
def personalise(
    run_dir: Path,
    epochs: int,
    lr: float | None,
    batch: int | None,
    share: float,
    workers: str | None,
    data_dir: str | None,
    fleet: str,
    workers_per_node: int | None,
    as_json: bool,
) -> None:
    """Fine-tune the last model of RUN_DIR on each client's own data, and judge it there on examples held out.

    The result is also written to personalised.json in the run directory.
    """
    from fedavg.runlog.rundir import RunDir
    from fedavg.study import personalise as module

    changes = {name: value for name, value in {"workers": workers, "data_dir": data_dir}.items() if value is not None}
    find_own_code()
    clients = chosen_fleet(fleet, workers_per_node, workers)
    result = module.personalise(run_dir, epochs=epochs, lr=lr, batch=batch, share=share, fleet=clients, **changes)
    RunDir(run_dir).write_json("personalised.json", result.to_dict())
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result)


def _print(result: "Personalised") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    document = result.to_dict()
    table = Table(box=box.SIMPLE, title=f"{len(result.clients)} clients, the model after round {result.round}")
    columns = list(document["gain"])
    for head in ("on examples held out", *columns):
        table.add_column(head, justify="left" if head not in columns else "right")
    for name, models in document["metrics"].items():
        table.add_row(f"{name}, shared model", *(f"{models['shared'][c]:.4f}" for c in columns))
        table.add_row(f"{name}, own model", *(f"{models['own'][c]:.4f}" for c in columns))
    table.add_row(f"gain in {result.metric}", *(f"{document['gain'][c]:+.4f}" for c in columns))
    console = Console(width=max(100, Console().width))
    console.print(table)
    shares = ", ".join(f"{share:.1%} {word}" for word, share in document["share_of_clients"].items())
    console.print(f"clients by {result.metric}: {shares}; {result.skipped} skipped, with nothing to judge on")
    if result.seen:
        console.print(
            "The shared model was trained on these examples too, so both scores are too high: for honest figures "
            "make the run with --holdout 0.2."
        )
