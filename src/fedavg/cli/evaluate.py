"""`fedavg evaluate`: judge a model on data of your choice; nothing is trained."""

import json
from pathlib import Path

import click

from fedavg.cli.completion import complete_run
from fedavg.cli.run import chosen_fleet, find_own_code, fleet_options


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="RUN|MODEL", shell_complete=complete_run)
@click.option(
    "--data", default=None, metavar="NAME|FILE", help="A data set, or a file or folder of examples [the run's]."
)
@click.option("--task", default=None, metavar="NAME", help="The task of a file of weights, or module:name of your own.")
@click.option("--label", default=None, metavar="NAME", help="The column of a table that holds the targets [label].")
@click.option("--metrics", default=None, metavar="VALUE", help="More metrics than the task's own, as in f1:10,topk:5.")
@click.option(
    "--eval-clients", default=None, metavar="VALUE", help="How many clients judge [all that hold examples out]."
)
@click.option("--workers", default=None, metavar="VALUE", help="Processes that judge [the plan's].")
@click.option("--data-dir", default=None, metavar="VALUE", help="Where data sets are kept [the plan's].")
@fleet_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def evaluate(
    source: Path,
    data: str | None,
    task: str | None,
    label: str | None,
    fleet: str,
    workers_per_node: int | None,
    as_json: bool,
    **options: str | None,
) -> None:
    """Evaluate the last model of a run directory, or the weights in a .safetensors file.

    \b
    fedavg evaluate runs/mine --metrics f1:10
    fedavg evaluate model.safetensors --task mnist-2nn --data mnist
    """
    from fedavg.cli.report import over_clients
    from fedavg.study.evaluate import evaluate as judge

    find_own_code()
    changes = {name: value for name, value in options.items() if value is not None}
    clients = chosen_fleet(fleet, workers_per_node, options["workers"])
    found = judge(source, data, task, label, clients, **changes)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    if found.metrics:
        click.echo(f"{found.task} on {found.examples:,} examples of {found.data}")
    for name, value in found.metrics.items():
        click.echo(f"{name:20} {value:.4f}")
    for name, text in over_clients(found.on_clients.to_dict() if found.on_clients else None):
        click.echo(f"{name:20} {text}")
