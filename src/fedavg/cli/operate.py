"""What those who operate a running server ask of it: how it is, and tokens."""

import json
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
@click.option("--ledger", is_flag=True, help="List what each round cost in privacy; needs the operator's token.")
@as_json_option
def status(server: AskedServer, ledger: bool, as_json: bool) -> None:
    """Show the progress of the server at URL; with a token, also what went wrong, by reason."""
    if ledger and not server.token_file:
        raise FleetError("--ledger: expected --admin-token-file as well; only those who operate the server see that")
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
        left = "" if current["phase"] == "done" else f", {current['seconds_left']} s left"
        click.echo(
            f"round {current['round']:<11} {current['phase']}: {current['accepted']} of {current['goal']} updates, "
            f"{current['invited']} invited, {current['failed']} failed{left}"
        )
    refused = answer["updates_refused"]
    click.echo(f"updates           {answer['updates_accepted']} accepted, refused: {_by_reason(refused)}")
    if answer["reports"]:
        click.echo(f"clients report    {_by_reason(answer['reports'])}")
    if server.token_file:
        _print_more(answer)


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none"


def _print_more(answer: dict[str, Any]) -> None:
    """What only operators of the server see."""
    last = answer["last_round"]
    if last:
        judged = last.get("test") or (last.get("on_clients") or {}).get("metrics") or {}
        found = "".join(f", {name} {value:.4g}" for name, value in judged.items() if value is not None)
        loss = "" if last["train_loss"] is None else f", training loss {last['train_loss']:.4g}"
        click.echo(f"last round        {last['clients']} clients, {last['seconds']:.1f} s{loss}{found}")
    click.echo(f"attempts          {answer['attempts_abandoned']} abandoned since the server began with the run")
    click.echo(f"clients missing   {_by_reason(answer['clients_missing'])}")
    click.echo(f"requests refused  {_by_reason(answer['requests_refused'])}")
    click.echo(f"shut out          {answer['revoked']} revoked, {answer['resting']} resting")
    for replica in answer.get("replicas", ()):
        leads = " (leads)" if replica["leads"] else ""
        click.echo(f"replica {replica['name']}  {replica['url']}{leads}, heard {replica['heard_s_ago']} s ago")


def _print_ledger(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    print_spent(rows)


def print_spent(rows: list[dict[str, Any]]) -> None:
    """What each round cost of privacy."""
    click.echo("round  releases  epsilon     delta")
    for row in rows:
        click.echo(f"{row['round']:<6} {row['releases']:<9} {row['epsilon']:<11.6g} {row['delta']:g}")
    if not rows:
        click.echo("no round of this run has spent privacy: its plan adds no noise, or none is committed yet")


@click.command()
@click.argument("url")
@reaching()
@click.option("--role", type=click.Choice(["operator", "submitter", "viewer"]),
              help="Instead of a join token: a token with this role, for a person.")  # fmt: skip
@click.option("--uses", type=click.IntRange(1), help="How many clients may join with it [1].")
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=168.0, show_default=True,
              help="How long it is valid.")  # fmt: skip
@click.option("--client", type=click.IntRange(0), help="The client number that it is for [any].")
@click.option("--label", default="", help="What it is for; with --role, who it is for.")
@click.option("--list", "listed", is_flag=True, help="Instead: list the tokens by id, never the tokens themselves.")
@click.option("--withdraw", metavar="ID", help="Instead: withdraw this token, so that nobody can use it any more.")
def token(
    server: AskedServer,
    role: str | None,
    uses: int | None,
    hours: float,
    client: int | None,
    label: str,
    listed: bool,
    withdraw: str | None,
) -> None:
    """Make a join token at the server at URL, or one with a role; list the tokens, or withdraw one.

    \b
    fedavg token https://server.example:8443 --admin-token-file admin-token --uses 20 --hours 24 > join-token
    fedavg token https://server.example:8443 --admin-token-file admin-token --role viewer --label grafana > viewer-token
    fedavg token https://server.example:8443 --admin-token-file admin-token --list
    """
    if listed:
        _print_tokens(ask(server, "GET", "/admin/tokens")["tokens"], ask(server, "GET", "/admin/roles")["roles"])
    elif withdraw is not None:
        check_token_id("--withdraw", withdraw)
        _withdraw(server, withdraw)
    elif role is not None:
        if uses is not None or client is not None:
            raise FleetError("--uses and --client are for join tokens; got --role as well")
        if not label:
            raise FleetError("--role: expected --label as well: who the token is for, as records and logs will say")
        click.echo(ask(server, "POST", "/admin/roles", {"role": role, "label": label, "hours": hours})["token"])
    else:
        wanted = {"uses": uses or 1, "label": label, "client": client, "hours": hours}
        click.echo(ask(server, "POST", "/admin/tokens", wanted)["token"])


def _withdraw(server: AskedServer, token: str) -> None:
    if token in {row["id"] for row in ask(server, "GET", "/admin/roles")["roles"]}:
        ask(server, "POST", f"/admin/roles/{token}/withdraw")
        click.echo(f"token {token} is withdrawn")
        return
    ask(server, "POST", f"/admin/tokens/{token}/withdraw")
    click.echo(f"token {token} is withdrawn; clients that joined with it stay: 'fedavg revoke' takes them back")


def _print_tokens(tokens: list[dict[str, Any]], roles: list[dict[str, Any]]) -> None:
    click.echo("id                for        used  left    expires in h  client  label")
    for row in tokens:
        left, client = ("any" if row[name] is None else row[name] for name in ("uses_left", "client"))
        click.echo(f"{row['id']}  joining    {row['used']:<5} {left:<7} {_expiry(row):<13} {client:<7} {row['label']}")
    for row in roles:
        click.echo(f"{row['id']}  {row['role']:<10} {'':<5} {'':<7} {_expiry(row):<13} {'':<7} {row['label']}")


def _expiry(row: dict[str, Any]) -> str:
    hours = row["expires_in_h"]
    return "never" if hours is None else "expired" if hours <= 0 else f"{hours:g}"


def check_token_id(option: str, text: str) -> None:
    if len(text) != 16 or not set(text) <= set("0123456789abcdef"):
        raise FleetError(f"{option}: got '{text}'; expected the id of a token, as 'fedavg token URL --list' shows it")
