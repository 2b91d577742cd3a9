"""The clients of a server, as its operator sees them: who they are and how they do, approval, revocation."""

import json
from collections.abc import Callable
from time import time
from typing import Any

import click

from fedavg.cli.asking import AskedServer, ask, reaching
from fedavg.cli.operate import as_json_option, check_token_id
from fedavg.errors import FleetError


@click.command()
@click.argument("url")
@reaching()
@as_json_option
def clients(server: AskedServer, as_json: bool) -> None:
    """List the clients of the server at URL: when each was last seen, its examples, state, failures and version."""
    rows: list[dict[str, Any]] = ask(server, "GET", "/admin/clients")["clients"]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("client  last seen  examples  state    failures                 version         address          "
               "token             name")  # fmt: skip
    for row in rows:
        failures = f"{row['failures']} {row['last_failure']}".strip()
        click.echo(
            f"{row['client']:<7} {_ago(row['last_seen']):<10} {row['examples']:<9} {row['state']:<8} {failures:<24} "
            f"{row['version']:<15} {row['address']:<16} {row['token']}  {row['name']}"
        )


def _ago(seconds: int | None) -> str:
    """How long ago that was, in the largest unit of which it is more than one."""
    if seconds is None:
        return "never"
    ago = max(0.0, time() - seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if ago >= 2 * size:
            return f"{ago / size:.0f} {unit}"
    return f"{ago:.0f} s"


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which clients are meant; all that are given must be true of a client."""
    for option in reversed((
        click.option("--client", type=click.IntRange(0), help="This client."),
        click.option("--token", metavar="ID", help="Clients that joined with this token ('fedavg token URL --list')."),
        click.option("--address", metavar="IP|NETWORK", help="Clients that enrolled from here, as in 10.1.0.0/16."),
        click.option("--newer-than", type=float, metavar="HOURS", help="Clients that enrolled within this many hours."),
        click.option("--older-than", type=float, metavar="HOURS", help="Clients that enrolled longer ago than this."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("url")
@reaching()
@_selecting
def revoke(server: AskedServer, **selection: Any) -> None:
    """Revoke the enrolment of clients at the server at URL: they are shut out at once and for good.

    \b
    fedavg revoke https://server.example:8443 --admin-token-file admin-token --client 7
    fedavg revoke https://server.example:8443 --admin-token-file admin-token --address 203.0.113.9 --newer-than 2
    """
    _change_clients("revoke", "revoked", server, selection)


@click.command()
@click.argument("url")
@reaching()
@_selecting
def approve(server: AskedServer, **selection: Any) -> None:
    """Admit clients that wait at a server started with --approval ('fedavg clients URL' lists them)."""
    _change_clients("approve", "approved", server, selection)


def _change_clients(verb: str, done: str, server: AskedServer, selection: dict[str, Any]) -> None:
    if selection["token"] is not None:
        check_token_id("--token", selection["token"])
    if all(value is None for value in selection.values()):
        raise FleetError(f"fedavg {verb}: got no client; expected --client, --token, --address or an age")
    wanted = {name: selection[name] for name in ("client", "token", "address")}
    wanted |= {"newer_than_h": selection["newer_than"], "older_than_h": selection["older_than"]}
    chosen = ask(server, "POST", f"/admin/clients/{verb}", wanted)["clients"]
    if not chosen:
        raise FleetError("no client matches; 'fedavg clients URL' lists them")
    click.echo(f"{done}: {', '.join(map(str, chosen))}")
