"""The command line. Each command is a file; a user's mistake ends in one clear message and exit code 2."""

import sys
from errno import EACCES, EDQUOT, EMFILE, ENFILE, ENOSPC, EPERM, EROFS
from io import TextIOWrapper
from typing import Final

import click

from fedavg.cli.authority import authority
from fedavg.cli.backup import backup, restore
from fedavg.cli.bench import bench
from fedavg.cli.clients import approve, clients, revoke
from fedavg.cli.compare import compare, plot
from fedavg.cli.completion import completion
from fedavg.cli.data import data
from fedavg.cli.doctor import doctor
from fedavg.cli.evaluate import evaluate
from fedavg.cli.export import export
from fedavg.cli.export_model import export_model
from fedavg.cli.fleet import certs, fleet_demo, serve
from fedavg.cli.groups import GroupedCommands
from fedavg.cli.join import join
from fedavg.cli.man import man
from fedavg.cli.operate import status, token
from fedavg.cli.page import page
from fedavg.cli.paper import paper
from fedavg.cli.personalise import personalise
from fedavg.cli.privacy import privacy
from fedavg.cli.run import resume, run
from fedavg.cli.runs import cancel, extend, pause, rollback, runs, submit
from fedavg.cli.study import study
from fedavg.cli.sweep import sweep
from fedavg.cli.world import world
from fedavg.errors import FedAvgError


@click.group(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="fedavg")
def cli() -> None:
    """Federated learning: simulate it, run it on devices, regenerate the paper (McMahan et al. 2017)."""


for command in (
    run, resume, sweep, compare, plot, evaluate, export, export_model, personalise, serve, join, status, clients, token,
    approve, revoke, certs, authority, fleet_demo, privacy, paper, study, page, data, bench, world, doctor,
    completion, man, submit, runs, pause, cancel, extend, rollback, backup, restore,
):  # fmt: skip
    cli.add_command(command)


#: What the system refuses to any caller: rights, space, a read-only disk, open files.
_REFUSED: Final = {EACCES, EPERM, EROFS, ENOSPC, EDQUOT, EMFILE, ENFILE}


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII
    try:
        cli(standalone_mode=False)
    except FedAvgError as error:
        if not error.told:
            click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        place = f" with {error.filename}" if error.filename else ""
        click.echo(
            f"error: the system refuses this{place}: {error.strerror}; expected files and folders that this user may "
            "use (HOME, --data-dir, --run-dir), space on the disk, and enough open files (ulimit -n)",
            err=True,
        )
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
