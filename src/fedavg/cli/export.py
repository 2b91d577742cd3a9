"""`fedavg export`: the rounds of a run as a table, or for a tracker."""

from pathlib import Path

import click

from fedavg.cli.completion import complete_run


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN", shell_complete=complete_run)
@click.option(
    "--to",
    type=click.Choice(["csv", "parquet", "jsonl", "tensorboard", "mlflow", "wandb"]),
    required=True,
    help="The format.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The file or folder [in the run directory].")
def export(run_dir: Path, to: str, out: Path | None) -> None:
    """Write the rounds of a run for other tools; 'fedavg run --track' does the same live.

    \b
    fedavg export runs/mine --to csv --out mine.csv
    fedavg export runs/mine --to tensorboard && tensorboard --logdir runs
    """
    from fedavg.cli.run import find_own_code
    from fedavg.study.track import export_run

    find_own_code()
    click.echo(f"wrote {export_run(run_dir, to, out)}")
