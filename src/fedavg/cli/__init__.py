"""The command line. Each command is a file; a user's mistake ends in one clear message and exit code 2."""

import sys

import click

from fedavg.cli.bench import bench
from fedavg.cli.data import data
from fedavg.cli.evaluate import evaluate
from fedavg.cli.fleet import certs, fleet_demo, join, serve
from fedavg.cli.operate import approve, revoke, status, token
from fedavg.cli.paper import paper
from fedavg.cli.personalise import personalise
from fedavg.cli.privacy import privacy
from fedavg.cli.run import resume, run
from fedavg.errors import FedAvgError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="fedavg")
def cli() -> None:
    """Federated averaging (McMahan et al. 2017): simulate it, regenerate the paper, look at data, measure speed."""


for command in (
    run, resume, evaluate, personalise, serve, join, status, token, approve, revoke, certs, fleet_demo, privacy, paper,
    data, bench,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    try:
        cli(standalone_mode=False)
    except FedAvgError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
