"""What the operator of a running server asks of it: status, tokens, approval, revocation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedavg.errors import FedAvgError, FleetError, PlanError

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_ca = click.option("--ca", type=FILE, help="The authority of the server's certificate, if it is not a public one.")
_admin = click.option("--admin-token-file", type=FILE, required=True, help="The operator's token: RUN-DIR/admin-token.")


def needs_server_extra() -> None:
    """The fleet needs packages that a simulation does not."""
    try:
        import cryptography  # noqa: F401
        import httpx2  # noqa: F401
        import sqlalchemy  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise FedAvgError(f"the fleet needs {error.name}; install it with: pip install 'fedavg[server]'") from None


def address(text: str, what: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise PlanError(f"{what}: got '{text}'; expected HOST:PORT, as in 0.0.0.0:8443")
    return host.strip("[]"), int(port)


def check_url(url: str, insecure: bool) -> None:
    from fedavg.fleets.http.device.connection import check_url

    check_url(url, insecure)


@click.command()
@click.argument("url")
@_ca
@click.option("--admin-token-file", type=FILE, help="The operator's token, to see more.")
@click.option("--clients", is_flag=True, help="List the clients; needs the operator's token.")
@click.option("--ledger", is_flag=True, help="List what each round cost of privacy; needs the operator's token.")
@as_json_option
def status(
    url: str, ca: Path | None, admin_token_file: Path | None, clients: bool, ledger: bool, as_json: bool
) -> None:
    """Where the run of the server at URL is."""
    needs_server_extra()
    if clients and ledger:
        raise FleetError("--clients and --ledger: got both; expected one list at a time")
    for wanted, name in ((clients, "clients"), (ledger, "ledger")):
        if wanted and not admin_token_file:
            raise FleetError(f"--{name}: expected --admin-token-file as well; only the operator sees that")
    if clients:
        _print_clients(_ask_server(url, ca, "GET", "/admin/clients", admin_token_file)["clients"], as_json)
        return
    if ledger:
        _print_ledger(_ask_server(url, ca, "GET", "/admin/ledger", admin_token_file)["ledger"], as_json)
        return
    answer = _ask_server(url, ca, "GET", "/admin/status" if admin_token_file else "/v1/status", admin_token_file)
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
@_admin
@click.option("--uses", type=click.IntRange(1), default=1, show_default=True, help="How many clients may use it.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=168.0, show_default=True,
              help="How long it is good for.")  # fmt: skip
@click.option("--client", type=click.IntRange(0), help="The client number that it is for [any].")
@click.option("--label", default="", help="What it is for.")
@click.option("--list", "listed", is_flag=True, help="Instead: list the tokens, by id: never the tokens themselves.")
@click.option("--withdraw", metavar="ID", help="Instead: nobody can enrol by this token any more.")
@_ca
def token(
    url: str,
    admin_token_file: Path,
    uses: int,
    hours: float,
    client: int | None,
    label: str,
    listed: bool,
    withdraw: str | None,
    ca: Path | None,
) -> None:
    """Make a join token at the server at URL, list the tokens, or withdraw one.

    \b
    fedavg token https://server.example:8443 --admin-token-file admin-token --uses 20 --hours 24 > join-token
    fedavg token https://server.example:8443 --admin-token-file admin-token --list
    """
    needs_server_extra()
    if listed:
        _print_tokens(_ask_server(url, ca, "GET", "/admin/tokens", admin_token_file)["tokens"])
    elif withdraw is not None:
        _check_token_id("--withdraw", withdraw)
        _ask_server(url, ca, "POST", f"/admin/tokens/{withdraw}/withdraw", admin_token_file)
        click.echo(f"token {withdraw} is withdrawn; clients that came by it stay: 'fedavg revoke' takes them back")
    else:
        wanted = {"uses": uses, "label": label, "client": client, "hours": hours}
        click.echo(_ask_server(url, ca, "POST", "/admin/tokens", admin_token_file, wanted)["token"])


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
@_admin
@_selecting
@_ca
def revoke(url: str, admin_token_file: Path, ca: Path | None, **selection: Any) -> None:
    """Take back the enrolment of clients at the server at URL: they are shut out at once and for good.

    \b
    fedavg revoke https://server.example:8443 --admin-token-file admin-token --client 7
    fedavg revoke https://server.example:8443 --admin-token-file admin-token --address 203.0.113.9 --newer-than 2
    """
    _change_clients("revoke", "revoked", url, ca, admin_token_file, selection)


@click.command()
@click.argument("url")
@_admin
@_selecting
@_ca
def approve(url: str, admin_token_file: Path, ca: Path | None, **selection: Any) -> None:
    """Let clients in that wait at a server started with --approval ('fedavg status URL --clients' lists them)."""
    _change_clients("approve", "approved", url, ca, admin_token_file, selection)


def _change_clients(
    verb: str, done: str, url: str, ca: Path | None, admin_token_file: Path, selection: dict[str, Any]
) -> None:
    needs_server_extra()
    if selection["token"] is not None:
        _check_token_id("--token", selection["token"])
    if all(value is None for value in selection.values()):
        raise FleetError(f"fedavg {verb}: got no client; expected --client, --token, --address or an age")
    wanted = {name: selection[name] for name in ("client", "token", "address")}
    wanted |= {"newer_than_h": selection["newer_than"], "older_than_h": selection["older_than"]}
    chosen = _ask_server(url, ca, "POST", f"/admin/clients/{verb}", admin_token_file, wanted)["clients"]
    if not chosen:
        raise FleetError("no client is like that; 'fedavg status URL --clients' lists them")
    click.echo(f"{done}: {', '.join(map(str, chosen))}")


def _ask_server(
    url: str, ca: Path | None, method: str, path: str, token_file: Path | None, content: object = None
) -> dict[str, Any]:
    import httpx2 as httpx

    from fedavg.fleets.http.protocol.certs import client_context

    check_url(url, insecure=True)  # which still keeps the operator's token off the network in the clear
    headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"} if token_file else {}
    try:
        with httpx.Client(verify=client_context(ca) if url.startswith("https:") else True, headers=headers) as http:
            response = http.request(method, url.rstrip("/") + path, json=content)
    except httpx.TransportError as error:
        raise FleetError(f"{url} does not answer: {error}; is the server running, and --ca right?") from None
    try:
        answer: dict[str, Any] = response.json()
    except ValueError:
        raise FleetError(f"{url}{path} answered {response.status_code} without JSON; is it a fedavg server?") from None
    if not response.is_success:
        raise FleetError(f"the server refused ({answer.get('error')}): {answer.get('detail')}")
    return answer
