"""What the operator of a running server asks of it: status, tokens, approval, revocation."""

import json
from collections.abc import Callable
from typing import Any

import click

from fedavg.cli.asking import AskedServer, ask, reaching
from fedavg.errors import FleetError, PlanError

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def address(text: str, what: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise PlanError(f"{what}: got '{text}'; expected HOST:PORT, as in 0.0.0.0:8443")
    return host.strip("[]"), int(port)


@click.command()
@click.argument("url")
@reaching(token_needed=False)
@click.option("--clients", is_flag=True, help="List the clients; needs the operator's token.")
@click.option("--ledger", is_flag=True, help="List what each round cost of privacy; needs the operator's token.")
@as_json_option
def status(server: AskedServer, clients: bool, ledger: bool, as_json: bool) -> None:
    """Where the run of the server at URL is."""
    if clients and ledger:
        raise FleetError("--clients and --ledger: got both; expected one list at a time")
    for wanted, name in ((clients, "clients"), (ledger, "ledger")):
        if wanted and not server.token_file:
            raise FleetError(f"--{name}: expected --admin-token-file as well; only the operator sees that")
    if clients:
        _print_clients(ask(server, "GET", "/admin/clients")["clients"], as_json)
        return
    if ledger:
        _print_ledger(ask(server, "GET", "/admin/ledger")["ledger"], as_json)
        return
    answer = ask(server, "GET", "/admin/status" if server.token_file else "/v1/status")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    current = answer["round"]
    click.echo(f"committed rounds  {answer['committed']}{' (the run is over)' if answer['done'] else ''}")
    click.echo(f"clients           {answer['present']} there now, {answer['clients']} enrolled")
    if current:
        click.echo(
            f"round {current['round']:<11} {current['phase']}: {current['accepted']} of {current['goal']} updates, "
            f"{current['invited']} invited, {current['failed']} failed, {current['seconds_left']} s left"
        )
    refused = answer["updates_refused"]
    shown = ", ".join(f"{n} {why}" for why, n in refused.items()) or "none"
    click.echo(f"updates           {answer['updates_accepted']} accepted, refused: {shown}")
    if answer["reports"]:
        click.echo(f"clients report    {', '.join(f'{n} {why}' for why, n in answer['reports'].items())}")


def _print_clients(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("client  examples  token             address          state     name")
    for row in rows:
        state = "revoked" if row["revoked"] else "enrolled" if row["approved"] else "waiting"
        click.echo(f"{row['client']:<7} {row['examples']:<9} {row['token']:<17} {row['address']:<16} {state:<9} "
                   f"{row['name']}")  # fmt: skip


def _print_ledger(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("round  releases  epsilon     delta")
    for row in rows:
        click.echo(f"{row['round']:<6} {row['releases']:<9} {row['epsilon']:<11.6g} {row['delta']:g}")
    if not rows:
        click.echo("no round of this run has spent privacy: its plan adds no noise, or none is committed yet")


@click.command()
@click.argument("url")
@reaching()
@click.option("--uses", type=click.IntRange(1), default=1, show_default=True, help="How many clients may use it.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=168.0, show_default=True,
              help="How long it is good for.")  # fmt: skip
@click.option("--client", type=click.IntRange(0), help="The client number that it is for [any].")
@click.option("--label", default="", help="What it is for.")
@click.option("--list", "listed", is_flag=True, help="Instead: list the tokens, by id: never the tokens themselves.")
@click.option("--withdraw", metavar="ID", help="Instead: nobody can enrol by this token any more.")
def token(
    server: AskedServer,
    uses: int,
    hours: float,
    client: int | None,
    label: str,
    listed: bool,
    withdraw: str | None,
) -> None:
    """Make a join token at the server at URL, list the tokens, or withdraw one.

    \b
    fedavg token https://server.example:8443 --admin-token-file admin-token --uses 20 --hours 24 > join-token
    fedavg token https://server.example:8443 --admin-token-file admin-token --list
    """
    if listed:
        _print_tokens(ask(server, "GET", "/admin/tokens")["tokens"])
    elif withdraw is not None:
        _check_token_id("--withdraw", withdraw)
        ask(server, "POST", f"/admin/tokens/{withdraw}/withdraw")
        click.echo(f"token {withdraw} is withdrawn; clients that came by it stay: 'fedavg revoke' takes them back")
    else:
        wanted = {"uses": uses, "label": label, "client": client, "hours": hours}
        click.echo(ask(server, "POST", "/admin/tokens", wanted)["token"])


def _print_tokens(rows: list[dict[str, Any]]) -> None:
    click.echo("id                used  left    expires in h  for client  label")
    for row in rows:
        left, expires, client = (
            "any" if row[name] is None else row[name] for name in ("uses_left", "expires_in_h", "client")
        )
        expires = "never" if expires == "any" else "expired" if row["expires_in_h"] <= 0 else expires
        click.echo(f"{row['id']}  {row['used']:<5} {left:<7} {expires:<13} {client:<11} {row['label']}")


def _check_token_id(option: str, text: str) -> None:
    if len(text) != 16 or not set(text) <= set("0123456789abcdef"):
        raise FleetError(f"{option}: got '{text}'; expected the id of a token, as 'fedavg token URL --list' shows it")


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which clients are meant; all that are given must be true of a client."""
    for option in reversed((
        click.option("--client", type=click.IntRange(0), help="This client."),
        click.option("--token", metavar="ID", help="Those that came by this token ('fedavg token URL --list')."),
        click.option("--address", metavar="IP|NETWORK", help="Those that enrolled from here, as in 10.1.0.0/16."),
        click.option("--newer-than", type=float, metavar="HOURS", help="Those that enrolled within so many hours."),
        click.option("--older-than", type=float, metavar="HOURS", help="Those that enrolled longer ago than that."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("url")
@reaching()
@_selecting
def revoke(server: AskedServer, **selection: Any) -> None:
    """Take back the enrolment of clients at the server at URL: they are shut out at once and for good.

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
    """Let clients in that wait at a server started with --approval ('fedavg status URL --clients' lists them)."""
    _change_clients("approve", "approved", server, selection)


def _change_clients(verb: str, done: str, server: AskedServer, selection: dict[str, Any]) -> None:
    if selection["token"] is not None:
        _check_token_id("--token", selection["token"])
    if all(value is None for value in selection.values()):
        raise FleetError(f"fedavg {verb}: got no client; expected --client, --token, --address or an age")
    wanted = {name: selection[name] for name in ("client", "token", "address")}
    wanted |= {"newer_than_h": selection["newer_than"], "older_than_h": selection["older_than"]}
    chosen = ask(server, "POST", f"/admin/clients/{verb}", wanted)["clients"]
    if not chosen:
        raise FleetError("no client is like that; 'fedavg status URL --clients' lists them")
    click.echo(f"{done}: {', '.join(map(str, chosen))}")
