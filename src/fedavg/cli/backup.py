"""Copies of a server from the command line: backup, restore."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fedavg.cli.asking import needs_server_extra
from fedavg.cli.fleet import database_options, database_url

_run_dir = click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/fleet"),
                        show_default=True, help="The server's folder.")  # fmt: skip


@click.command()
@click.argument("copy", type=click.Path(path_type=Path))
@_run_dir
@database_options
def backup(copy: Path, run_dir: Path, **options: Any) -> None:
    """Copy a server into the new folder COPY, on its machine, while it runs: its databases and its runs' records.

    Tokens are not copied: 'fedavg serve --new-admin-token' makes a new one for a restored server.

    \b
    fedavg backup copies/monday --run-dir service
    fedavg backup copies/monday --run-dir service --db-file database-url
    """
    needs_server_extra()
    from fedavg.programs.backup import back_up

    made = back_up(copy, run_dir, database_url(options))
    click.echo(f"{copy}: {len(made.runs)} runs, {len(made.files)} files, schema {made.schema}")


@click.command()
@click.argument("copy", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_run_dir
@database_options
@click.option("--nothing-since", is_flag=True,
              help="No server has run since the copy was made: private runs may continue.")  # fmt: skip
def restore(copy: Path, run_dir: Path, nothing_since: bool, **options: Any) -> None:
    """Restore a server's folder and database from a COPY; both must be empty. 'fedavg serve' continues from there.

    \b
    fedavg restore copies/monday --run-dir restored
    fedavg serve --run-dir restored --new-admin-token ...
    """
    needs_server_extra()
    from fedavg.programs.backup import restore as restored

    made = restored(copy, run_dir, database_url(options), nothing_since)
    at = datetime.fromtimestamp(made.made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    click.echo(f"{run_dir} is the server of {at}, with {len(made.runs)} runs")
    if not nothing_since:
        click.echo("clients that enrolled since then enrol again; those that were revoked since must be revoked again")
