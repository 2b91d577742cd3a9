"""`fedavg data`: list, fetch and look at data sets. Heavy imports wait until a command runs, so that help is quick."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedavg.data.dataset import Dataset

_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the data sets [default: $FEDAVG_DATA, else the platform's cache folder].",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
_name = click.argument("name")


@click.group()
def data() -> None:
    """Data sets: list them, fetch them, see how they are split over clients."""


@data.command("list")
@_data_dir
@_json
def list_(data_dir: Path | None, as_json: bool) -> None:
    """List the data sets, and which of them are on this machine."""
    from fedavg.data import DATASETS
    from fedavg.data.location import data_directory

    folder = data_directory(data_dir)
    rows = [_listing(dataset, folder) for dataset in DATASETS.values()]
    if as_json:
        _print_json({"data_dir": str(folder), "datasets": rows})
        return
    for row in rows:
        click.echo(f"{row['name']:<16} {row['state']:<12} {row['summary']}")
    click.echo(f"data directory: {folder}", err=True)


@data.command()
@_name
@_data_dir
@_json
def get(name: str, data_dir: Path | None, as_json: bool) -> None:
    """Fetch the files of a data set: checked, resumed where a download broke off, replaced where damaged."""
    from fedavg.data import dataset_named
    from fedavg.data.download import obtain_all, present
    from fedavg.data.location import data_directory

    dataset, folder = dataset_named(name), data_directory(data_dir)
    needed = not dataset.built_in or any(present(file, folder) for file in dataset.files)
    files = obtain_all(dataset, folder) if needed else []
    if as_json:
        rows = [{"path": str(f.path), "sha256": f.form.sha256, "fetched": f.fetched} for f in files]
        _print_json({"name": name, "built_in": dataset.built_in, "files": rows})
        return
    for file in files:
        click.echo(f"{'fetched' if file.fetched else 'here   '}  {file.path}")
    if not needed:
        click.echo(f"{name} is part of the package: there is nothing to fetch")


@data.command()
@_name
@_data_dir
@_json
def info(name: str, data_dir: Path | None, as_json: bool) -> None:
    """What a data set is, and its size in clients and examples beside the paper's."""
    from fedavg.data import dataset_named, load
    from fedavg.data.location import data_directory
    from fedavg.data.show import describe, summary, summary_lines

    dataset = dataset_named(name)
    listing = _listing(dataset, data_directory(data_dir)) | {"paper": dataset.paper}
    lines = [
        f"{dataset.name}: {dataset.summary}",
        f"licence           {dataset.licence}",
        f"partitions        {', '.join(dataset.partitions)} (the first is the default)",
        *(f"{key:<17} {', '.join(values)} (the first is the default)" for key, values in dataset.choices.items()),
        f"in the paper      {dataset.paper or 'not used'}",
    ]
    if listing["state"] == "missing":
        lines.append(f"files             missing: fedavg data get {name}")
    else:
        loaded = load(name, data_dir=data_dir)
        table, facts = describe(loaded), dict(dataset.facts(loaded))
        listing |= summary(table) | {"partition": dataset.default_partition, "facts": facts}
        lines += summary_lines(table) + [f"{fact.replace('_', ' '):<17} {value:,}" for fact, value in facts.items()]
    if as_json:
        _print_json(listing)
    else:
        click.echo("\n".join(lines))


@data.command()
@_name
@click.option("--partition", help="iid, shards:2, dirichlet:0.5, unbalanced:1.5 or natural [default: the data set's].")
@click.option("--clients", type=int, help="Number of clients [default: the data set's].")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the partition.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture to this PNG file.")
@_data_dir
@_json
def show(
    name: str,
    partition: str | None,
    clients: int | None,
    seed: int,
    plot: Path | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """How a partition deals the examples out: sizes and labels by client."""
    from rich.console import Console

    from fedavg.data import check, load
    from fedavg.data import show as view

    spec = str(check(name, partition, clients))
    table = view.describe(load(name, spec, clients, seed, data_dir))
    if plot is not None:
        view.plot(table, plot)
        click.echo(f"wrote {plot}", err=True)
    if as_json:
        _print_json({"partition": spec, "seed": seed} | view.as_json(table))
        return
    Console().print(view.as_table(table))
    click.echo("\n".join(view.summary_lines(table)))


def _listing(dataset: "Dataset", folder: Path) -> dict[str, Any]:
    from fedavg.data.download import complete

    state = "here" if complete(dataset, folder) else "built in" if dataset.built_in else "missing"
    return {
        "name": dataset.name,
        "summary": dataset.summary,
        "state": state,
        "licence": dataset.licence,
        "clients": dataset.clients,
        "partitions": list(dataset.partitions),
        "settings": {key: list(values) for key, values in dataset.choices.items()},
    }


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document))
