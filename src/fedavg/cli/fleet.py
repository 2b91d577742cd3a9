"""The real fleet from the command line: serve, certs and a demonstration of all of it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fedavg.cli.asking import FILE, needs_server_extra
from fedavg.cli.completion import complete_source
from fedavg.cli.operate import address, as_json_option
from fedavg.cli.run import find_own_code, plan_changes, plan_options, plan_settings, setting
from fedavg.errors import PlanError

if TYPE_CHECKING:
    from fedavg.fleets.http.protocol.certs import CertifiedKey
    from fedavg.fleets.http.server.rounds import Rules
    from fedavg.plan import Plan

log = logging.getLogger("fedavg.fleet")


def database_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which database a server has."""
    for option in (
        click.option("--db-file", type=FILE, help="A file with that URL, which may hold a password."),
        click.option("--db", metavar="URL", envvar="FEDAVG_DB", show_envvar=True,
                     help="postgresql://USER@HOST/NAME, or an SQLite file [RUN-DIR/fleet.db]."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("source", required=False, shell_complete=complete_source)
@plan_options
@plan_settings
@click.option("--allow", multiple=True, metavar="PACKAGE",
              help="For a service: a package whose code submitted plans may name; may be repeated [none].")  # fmt: skip
@click.option("--side-by-side", type=click.IntRange(1), metavar="N",
              help="For a service: runs that are served at a time; a client works for one of them [1].")  # fmt: skip
@click.option("--listen", default="127.0.0.1:8443", metavar="HOST:PORT", help="Where clients connect [127.0.0.1:8443].")
@click.option("--cert", type=FILE, help="The server's certificate, PEM ('fedavg certs' makes one for trying out).")
@click.option("--key", type=FILE, help="Its private key, PEM.")
@click.option("--client-ca", type=FILE, help="Only clients with a certificate of this authority may connect (mTLS).")
@click.option("--insecure", is_flag=True, help="Plain HTTP; on loopback only.")
@click.option("--run-dir", type=click.Path(path_type=Path), default=Path("runs/fleet"), show_default=True,
              help="Tokens, metrics, the model, and the database unless --db is given.")  # fmt: skip
@database_options
@click.option("--replica", is_flag=True, help="Be one of several processes that are one server, with one PostgreSQL.")
@click.option("--replica-url", metavar="URL", help="Where other replicas reach this one [where it listens].")
@click.option("--replica-cert", type=FILE, help="With --client-ca: the certificate, PEM, that it shows to others.")
@click.option("--replica-key", type=FILE, help="Its private key, PEM.")
@click.option("--admin-listen", metavar="HOST:PORT", help="A separate address for the operator's endpoints.")
@click.option("--min-clients", type=click.IntRange(1), help="Clients to wait for before a round [a cohort].")
@click.option("--deadline", type=float, help="Seconds that a round may take [the plan's closing, or 600].")
@click.option("--over-selection", type=float,
              help="Invite this many times the clients needed; the first to answer count [the plan's closing, or 1].",
              )  # fmt: skip
@click.option("--quorum", type=float,
              help="The share of wanted updates that a round needs at its deadline [the plan's closing, or 0.5].",
              )  # fmt: skip
@click.option("--max-weight", type=float, default=1e6, show_default=True, help="The largest n_k to accept.")
@click.option("--times-median", type=click.FloatRange(1), default=5.0, show_default=True,
              help="An update counts for at most this many times the median n_k of enrolled clients.")  # fmt: skip
@click.option("--norm-bound", type=float, help="Refuse updates with a larger L2 norm.")
@click.option("--authority", type=FILE, metavar="AUTHORITY.PUB",
              help="The public key of the authority that vouches for devices; signed sessions need it.")  # fmt: skip
@click.option("--anonymous", is_flag=True, help="Updates come with single-use tokens, not with names.")
@click.option("--approval", is_flag=True, help="New clients wait until 'fedavg approve' lets them in.")
@click.option(
    "--join-uses", type=click.IntRange(1), help="Clients that the first join token is for [the plan's clients]."
)
@click.option("--join-hours", type=click.FloatRange(0, min_open=True), default=168.0, show_default=True,
              help="Hours for which the first join token is valid.")  # fmt: skip
@click.option("--linger", type=float, default=30.0, show_default=True,
              help="Seconds to wait after the last round until all clients know.")  # fmt: skip
@click.option("--keep-rounds", type=click.IntRange(0), default=2, show_default=True,
              help="States of earlier rounds that are kept, for 'fedavg rollback'.")  # fmt: skip
@click.option("--new-admin-token", is_flag=True, help="Replace the operator's token: the old one becomes void.")
@click.option("--publish", type=click.Choice(["final", "rounds", "none"]), default="final", show_default=True,
              help="Which models clients may fetch: the final one, that of every round, or none.")  # fmt: skip
@as_json_option
def serve(source: str | None, settings: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Train by a plan on devices that join over the network. Restarted with the same --run-dir, it continues.

    Without a plan it is a service: it serves the plans that 'fedavg submit' sends it, one after another.

    \b
    fedavg certs certificates --host server.example
    fedavg serve plan.toml --listen 0.0.0.0:8443 --cert certificates/server.pem --key certificates/server.key
    """
    needs_server_extra()
    from fedavg.cli.report import print_summary
    from fedavg.fleets.http.protocol.certs import ServerCertificate
    from fedavg.fleets.http.protocol.vouchers import load_public
    from fedavg.fleets.http.server.fleet import Stopped
    from fedavg.fleets.http.server.guards import Guards
    from fedavg.fleets.http.server.logs import log_to_stderr, told_in_the_log
    from fedavg.programs.replica import serve_replica
    from fedavg.programs.servable import Address, Options
    from fedavg.programs.serve import JOIN_TOKEN
    from fedavg.programs.serve import serve as run_server
    from fedavg.programs.service import serve_runs
    from fedavg.programs.service_replica import serve_runs_together
    from fedavg.programs.shared_run import Place

    plan = _plan(source, settings, options) if source else None
    if plan is None:
        _check_no_plan(settings, options)
    if options["allow"] and source:
        raise PlanError("--allow is for a service, whose plans come from elsewhere; expected none with a plan of yours")
    if options["side_by_side"] and source:
        raise PlanError("--side-by-side is for a service, which has several runs; expected none with a plan of yours")
    listen = Address(*address(options["listen"], "--listen"))
    if bool(options["cert"]) != bool(options["key"]):
        raise PlanError("--cert and --key belong together; got one of them")
    if options["client_ca"] and not options["cert"]:
        raise PlanError("--client-ca asks clients for certificates, which plain HTTP does not carry; expected --cert")
    if options["cert"] and options["insecure"]:
        raise PlanError("--insecure is for plain HTTP; got --cert too, which is for TLS; expected one of them")
    if not options["cert"] and not options["insecure"]:
        raise PlanError(
            "expected --cert and --key ('fedavg certs' makes them for trying out), or --insecure on loopback"
        )
    if options["replica"] and options["new_admin_token"]:
        raise PlanError("--new-admin-token: replicas share a token, and each keeps its hash; expected a server that is "
                        "alone on the database, once")  # fmt: skip
    if options["replica_url"] and not options["replica"]:
        raise PlanError("--replica-url is for replicas; expected --replica as well")
    shown = _shown_to_replicas(options)
    certificate = ServerCertificate(options["cert"], options["key"], options["client_ca"]) if options["cert"] else None
    tls = certificate.context if certificate else None
    directory: Path = options["run_dir"]
    log_to_stderr()

    def ready(port: int) -> None:
        url = f"{'https' if tls else 'http'}://{listen.host}:{port}"
        there = (directory / JOIN_TOKEN).exists()
        known = f"the database has its tokens already; for another: fedavg token {url} --admin-token-file FILE"
        token = f"in {directory / JOIN_TOKEN}" if there else known
        log.info("serving", extra={"url": url, "join_token": token})

    admin = options["admin_listen"]
    served = Options(
        listen,
        directory,
        database=database_url(options),
        tls=tls,
        reload=certificate.reload if certificate else None,
        admin=Address(*address(admin, "--admin-listen")) if admin else None,
        rules=_rules(plan, options),
        guards=Guards(
            options["max_weight"],
            options["times_median"],
            options["norm_bound"],
            options["anonymous"],
            options["approval"],
        ),
        minimum=options["min_clients"],
        authority=load_public(options["authority"]) if options["authority"] else None,
        join_uses=options["join_uses"],
        join_hours=options["join_hours"],
        linger_s=options["linger"],
        publish=options["publish"],
        new_admin_token=options["new_admin_token"],
        keep_rounds=options["keep_rounds"],
        side_by_side=options["side_by_side"] or 1,
    )
    try:
        with told_in_the_log(Stopped):
            place = Place(options["replica_url"], certificate.pem if certificate else None, shown)
            if plan is None and options["replica"]:
                serve_runs_together(served, options["allow"], place, ready)
                return
            if plan is None:
                serve_runs(served, options["allow"], ready)
                return
            if options["replica"]:
                result = serve_replica(plan, served, place, ready=ready)
            else:
                result = run_server(plan, served, ready=ready)
    except Stopped:
        return
    if as_json:
        click.echo(json.dumps(result.summary.to_dict(), indent=2))
    else:
        print_summary(result.summary, None)


def _shown_to_replicas(options: dict[str, Any]) -> "CertifiedKey | None":
    """What a replica shows to others that ask their clients for certificates: it is a client of theirs."""
    from fedavg.fleets.http.protocol.certs import CertifiedKey

    cert, key = options["replica_cert"], options["replica_key"]
    if bool(cert) != bool(key):
        raise PlanError("--replica-cert and --replica-key belong together; got one of them")
    if cert and not (options["replica"] and options["client_ca"]):
        raise PlanError("--replica-cert is for replicas with --client-ca; expected --replica and --client-ca as well")
    if options["replica"] and options["client_ca"] and not cert:
        raise PlanError(
            "--client-ca: got it without --replica-cert, and replicas are clients of each other; expected "
            "--replica-cert and --replica-key, a client's certificate of that authority for each replica. Where the "
            "load balancer ends TLS, let that ask for certificates instead"
        )
    return CertifiedKey(cert, key) if cert else None


def database_url(options: dict[str, Any]) -> str | None:
    """The URL of the database, from the command line, the environment or a file."""
    url, file = options["db"], options["db_file"]
    if url and file:
        raise PlanError("--db and --db-file: got both (--db may come from FEDAVG_DB); expected one of them")
    text: str | None = file.read_text().strip() if file else url
    if file and not text:
        raise PlanError(f"--db-file: {file} is empty; expected the URL of a database")
    return text


def _check_no_plan(settings: tuple[str, ...], options: dict[str, Any]) -> None:
    """A service has no plan of its own, and what is for one is refused."""
    from fedavg.plan import option_names

    find_own_code()
    given = [name for name in option_names() if options.get(name) is not None] + list(settings)
    if given:
        raise PlanError(f"{given[0]}: got an option of a plan without a plan; expected 'fedavg serve PLAN', or no such "
                        "option: a service takes plans by 'fedavg submit'")  # fmt: skip


def _rules(plan: "Plan | None", options: dict[str, Any]) -> "Rules":
    from fedavg.fleets.http.server.rounds import Rules
    from fedavg.plan.plan import default_of
    from fedavg.programs.servable import said_twice

    names = {"deadline": "deadline_s", "over_selection": "over_selection", "quorum": "quorum"}
    given = {field: options[name] for name, field in names.items() if options[name] is not None}
    if given and plan is not None and plan.closing != default_of("closing"):
        raise said_twice(plan)
    return Rules(**given)


def _plan(source: str, settings: tuple[str, ...], options: dict[str, Any]) -> Any:
    from fedavg.plan import load_plan, option_names
    from fedavg.plan.presets import source_values
    from fedavg.programs.servable import check_data_is_named

    find_own_code()
    given = plan_changes({name: options.get(name) for name in option_names()}, settings)
    for name, why in _FOR_SIMULATIONS.items():
        if name in given:  # a plan file may have them: the same file is simulated too
            raise PlanError(f"{name}: got {given[name]}, which has no effect on a server: {why}; expected none")
    check_data_is_named({**source_values(source), **given})
    return load_plan(source, given)


#: Options of a plan that only a simulation uses, and why a server does not.
_FOR_SIMULATIONS: Final = {
    "workers": "devices train, and it judges models in its own process",
    "worker_timeout": "devices train, and --deadline bounds how long they may take",
    "start_method": "devices train, and it starts no workers",
    "checkpoint_s": "it commits every round to its database",
    "device": "each device says where it trains (fedavg join --device), and the server judges on its processor",
}


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--host", "hosts", multiple=True,
              help="A name or address of the server; may be repeated [localhost and 127.0.0.1; with --renew, as "
              "before].")  # fmt: skip
@click.option("--days", type=click.IntRange(1), default=365, show_default=True, help="How long they are valid.")
@click.option(
    "--clients",
    type=click.IntRange(0),
    help="Also make this many for clients (mTLS) [none; with --renew, those there].",
)
@click.option("--renew", is_flag=True, help="Renew those in DIRECTORY, under the same authority.")
def certs(directory: Path, hosts: tuple[str, ...], days: int, clients: int | None, renew: bool) -> None:
    """Make a certificate authority and a server's certificate in DIRECTORY, for trying out and for closed networks.

    A running server loads renewed certificates on SIGHUP; nothing changes for clients.

    \b
    fedavg certs certificates --host server.example
    fedavg certs certificates --renew && kill -HUP $(pidof fedavg)
    """
    needs_server_extra()
    from fedavg.fleets.http.protocol.certs import make_certificates, renew_certificates

    if renew and clients is not None:
        raise PlanError("--clients says how many to make at first; with --renew all that are there are renewed")
    if renew:
        made = renew_certificates(directory, hosts, days)
        click.echo(f"renewed: {', '.join(str(pair.certificate) for pair in (made.server, *made.clients))}")
        click.echo("send the server SIGHUP to load them")
        return
    made = make_certificates(directory, hosts or ("localhost", "127.0.0.1"), days, clients or 0)
    click.echo(f"server: --cert {made.server.certificate} --key {made.server.key}")
    click.echo(f"clients: --ca {made.ca.certificate}")


@click.command("fleet-demo")
@click.option("--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Client processes.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds.")
@click.option("-C", "C", type=float, default=0.5, show_default=True, help="The fraction of clients in a round.")
@click.option("--partition", default="iid", show_default=True, help="How MNIST is split over the clients.")
@click.option(
    "--world", metavar="WORLD", help="Start and kill client processes as this world says, as in diurnal:2:hours=16."
)
@click.option("--hour-s", type=click.FloatRange(0, min_open=True), help="Seconds that an hour of the world takes [5].")
@plan_settings
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to keep everything [a new folder under runs/].")
@as_json_option
def fleet_demo(
    settings: tuple[str, ...], run_dir: Path | None, as_json: bool, world: str | None, hour_s: float | None,
    **options: Any,
) -> None:  # fmt: skip
    """A server and real client processes on this machine, on the embedded MNIST; then the same in simulation.

    \b
    fedavg fleet-demo --set algorithm=scaffold
    fedavg fleet-demo --set codec=stc:0.03 --set downlink=stc:0.03
    fedavg fleet-demo --world diurnal:2:hours=16 --clients 6 --rounds 10
    """
    needs_server_extra()
    from fedavg.cli.demo import ClientHours, demonstrate
    from fedavg.plan import load_plan
    from fedavg.world import make_world

    if hour_s is not None and world is None:
        raise PlanError("--hour-s: got it without --world, whose hours it is about; expected both")

    plan = load_plan("mnist-2nn", {"lr": 0.1, **options, **dict(setting(text) for text in settings)})
    schedule = ClientHours(make_world(world), hour_s or 5.0) if world else None
    outcome = demonstrate(plan, run_dir, lambda text: click.echo(text, err=True), schedule)
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
        return
    equal = outcome["model_sha256"] == outcome["simulated_sha256"]
    click.echo(f"fleet      {outcome['model_sha256']}")
    if outcome["simulated_sha256"]:
        same = "the same, bit for bit" if equal else "NOT the same"
        click.echo(f"simulated  {outcome['simulated_sha256']}  ({same})")
    if world:
        click.echo(f"clients    started {outcome['started']} times, killed {outcome['killed']} times")
    click.echo(f"accuracy   {outcome['accuracy']:.4f} after {outcome['rounds']} rounds; files in {outcome['run_dir']}")
    click.echo(f"sent       {outcome['bytes_up'] / 1e6:.1f} MB up, {outcome['bytes_down'] / 1e6:.1f} MB down")
