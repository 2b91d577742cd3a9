"""What may be served, and how: the options of a server, and the parts of a plan that a server cannot support."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Final

from fedavg import trees
from fedavg.algorithms import make_algorithm
from fedavg.cohorts import cohort_size
from fedavg.data.finite import check_finite
from fedavg.engine.trainer import Trainer
from fedavg.errors import PlanError, TaskError
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.rounds import Rules
from fedavg.fleets.http.server.store.store import OLD_STATES_KEPT
from fedavg.plan import Plan
from fedavg.plan.options import NO_DATA
from fedavg.plan.plan import default_of
from fedavg.programs.signals import Reload
from fedavg.samplers import make_sampler
from fedavg.setup import Setup, check_data_dir, population_of, resolve, resolve_data, served
from fedavg.specs import is_import
from fedavg.tasks import Task
from fedavg.types import Examples, Population
from fedavg.world import make_closing

#: Which models clients may download: the final one, that of every committed round, or none.
PUBLISH: Final = ("final", "rounds", "none")
#: The first join token is valid for a week.
JOIN_HOURS: Final = 7 * 24.0
MOST_HOURS: Final = 87_840
#: The quorum of a closing without a minimum: one update, however many are wanted.
ONE_IS_ENOUGH: Final = 1e-9


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        return self.host in ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Options:
    """How to serve. None of these options changes the model if all invited clients answer."""

    listen: Address
    directory: Path
    #: A database URL; without one, an SQLite file in the directory.
    database: str | None = None
    tls: ssl.SSLContext | None = None
    #: Reads the files of `tls` again, for new connections, and first reports the new certificate.
    reload: Reload | None = None
    #: Where the operator's endpoints are; without it, at the clients' address.
    admin: Address | None = None
    rules: Rules = field(default_factory=Rules)
    guards: Guards = field(default_factory=Guards)
    #: The public key (raw Ed25519) of the authority that vouches for devices, if the plan's sessions are signed.
    authority: bytes | None = None
    #: How many clients must be there before a round begins; without it, a cohort.
    minimum: int | None = None
    #: How many clients the first join token is for (without it, K of the plan), and for how many hours.
    join_uses: int | None = None
    join_hours: float = JOIN_HOURS
    #: Seconds for which the server stays after the last round, to tell clients that the run is over.
    linger_s: float = 30.0
    #: Which models clients may download, one of PUBLISH.
    publish: str = "final"
    #: Whether to replace the operator's token; the old one, which may have leaked, becomes invalid.
    new_admin_token: bool = False
    #: How many states of earlier rounds are kept, for rolling back.
    keep_rounds: int = OLD_STATES_KEPT
    #: Of a service: how many runs are served at a time.
    side_by_side: int = 1


def check_options(plan: Plan, options: Options) -> None:
    """Refuse options that cannot be served, or would have no effect."""
    _check_plan(plan)
    _check_plain(options)
    _check_guards(plan, options.guards)
    _check_times(options)
    _check_authority(plan, options)


@dataclass(frozen=True)
class OwnData:
    """What a server has: the population of the plan, if it is known, and a test set, if there is one."""

    clients: Population | None
    test: Examples | None


def own_data(plan: Plan) -> OwnData:
    """Of the plan's data the server keeps the test set; a plan may also do without any data here."""
    if plan.data == NO_DATA:
        check_data_dir(plan)
        return OwnData(Population(plan.clients) if plan.clients is not None else None, None)
    data = resolve_data(plan)
    return OwnData(population_of(data), data.test)


def check_data_is_named(values: Mapping[str, object]) -> None:
    """A user's own task without data would be judged on the default data of simulations, which does not fit it."""
    task = values.get("task")
    if "data" not in values and isinstance(task, str) and is_import(task, Task):
        raise PlanError(
            f"data: got none with task '{task}'; expected data = '{NO_DATA}' for a server without data (devices judge "
            "the model, if the plan has a holdout), or 'module:Name' of data whose test set the server judges on"
        )


def by_closing(plan: Plan, data: OwnData, options: Options) -> Options:
    """The options with the plan's closing applied; unchanged where the closing says nothing."""
    if plan.closing == default_of("closing"):
        return options
    if options.rules != Rules():
        raise said_twice(plan)
    if make_algorithm(plan.algorithm).asynchronous:
        raise PlanError(
            f"closing: got '{plan.closing}' with algorithm '{plan.algorithm}', whose rounds end when its buffer is "
            "full; expected 'all'"
        )
    closing = make_closing(plan.closing)
    if closing.share < 1 and plan.secagg != "none":
        raise PlanError(
            f"closing: got '{plan.closing}' with secagg: the phases of a session, not the first to answer, say whose "
            "updates are in the sum; expected 'all' or 'deadline'"
        )
    # Real devices may vanish without notice, so every round needs a limit.
    deadline = closing.deadline if isfinite(closing.deadline) else Rules().deadline_s
    rules = Rules(deadline, closing.over, max(closing.minimum, ONE_IS_ENOUGH), closing.share)
    return replace(options, rules=rules, minimum=_needed(plan, data, options.minimum))


def said_twice(plan: Plan) -> PlanError:
    return PlanError(
        f"closing: got '{plan.closing}' in the plan, and --deadline, --over-selection or --quorum, which say the same; "
        "expected one of them"
    )


def _needed(plan: Plan, data: OwnData, minimum: int | None) -> int | None:
    """How many clients must be there before a round begins, if the closing requires other than a cohort."""
    closing = make_closing(plan.closing)
    if closing.needs == 1:
        return minimum
    if minimum is not None:
        raise PlanError(
            f"--min-clients: got {minimum}, and closing '{plan.closing}', whose `needs` says the same; expected one"
        )
    if data.clients is None:
        raise PlanError(
            f"closing: got '{plan.closing}', whose `needs` is a share of an unknown number; expected `clients` in "
            "the plan, or --min-clients"
        )
    return closing.needed(cohort_size(plan.C, data.clients))


def resolve_served(plan: Plan, data: OwnData, rules: Rules) -> Setup:
    """The setup of the plan for the clients that will join. The server's evaluation is tried out once first."""
    clients = data.clients
    setup = served(resolve(plan, clients, data.test, devices=True))
    if setup.budget and clients and clients.count != plan.clients:
        raise PlanError(
            f"clients: got {plan.clients}, but data '{plan.data}' has {clients.count}; a private run needs the same "
            "number: its noise and its mean are computed for K clients"
        )
    if setup.algorithm.asynchronous and rules.over_selection != 1:
        raise PlanError(
            f"--over-selection: got {rules.over_selection:g}, but with '{setup.algorithm.name}' clients are always at "
            "work, and its buffer says how many updates make a step; expected 1, or a larger C for more at work"
        )
    if setup.secagg and clients:
        setup.secagg.check(rules.invited(cohort_size(plan.C, clients)))
    _try_out(setup)
    return setup


def _try_out(setup: Setup) -> None:
    """Judge one batch of the test set, so that a faulty evaluation fails before any client has trained."""
    trainer = Trainer(setup.task, setup.plan.seed)
    if not setup.judged_by_server or not setup.test:
        return
    check_finite(setup.test, "the test set")
    batch = trees.take(setup.test, slice(0, 2))
    try:
        trainer.fit(batch)
        trainer.evaluate(batch)
    except Exception as error:  # from the task's own code, or from PyTorch on wrong shapes
        raise TaskError(
            f"task '{setup.plan.task}' cannot judge the test set of data '{setup.plan.data}': {error}; expected data "
            f"of the task, or data = '{NO_DATA}' for a server without data"
        ) from error


def check_minimum(setup: Setup, minimum: int | None) -> None:
    least = setup.secagg.shares.least if setup.secagg and setup.secagg.shares else 0
    most = setup.plan.clients
    if minimum is not None and most is not None and minimum > most:
        raise PlanError(f"--min-clients: got {minimum}; expected at most {most}: the plan has no more clients")
    if minimum is not None and minimum < least:
        raise PlanError(
            f"--min-clients: got {minimum}; expected at least {least}: so many together carry the noise of the plan"
        )


def _check_plan(plan: Plan) -> None:
    if plan.attack is not None:
        raise PlanError(
            f"attack: got '{plan.attack}', and the clients of a server are real: their lies cannot be simulated; "
            "expected none"
        )
    for name, part in plan.objects():
        raise PlanError(
            f"{name}: got {part!r}, an object that has no text form, and devices know a plan only as text; install its "
            "code on the server and the devices, and name it: 'my_package.module:Name'"
        )
    sampler = make_sampler(plan.sampling)
    if sampler.needs_everyone or (sampler.needs_losses and not sampler.remembers):
        raise PlanError(
            f"sampling: got '{sampler}'; clients that come and go cannot be sampled that way: expected 'fixed', "
            "'weighted', 'turns', 'corrected', 'oort', or one that needs neither everyone nor losses of the moment"
        )
    for name in ("world", "changes"):
        if getattr(plan, name) is not None:
            raise PlanError(
                f"{name}: got '{getattr(plan, name)}'; real devices come and go, and their data changes, by "
                "themselves: expected none. When a round ends is for the plan's closing to say, or for --deadline, "
                "--over-selection and --quorum"
            )
    if plan.eval_train:
        raise PlanError("eval_train: the training data is on the clients and never leaves them; expected false")


def _check_times(options: Options) -> None:
    if options.publish not in PUBLISH:
        raise PlanError(f"--publish: got '{options.publish}'; expected one of {', '.join(PUBLISH)}")
    if not 0 < options.join_hours <= MOST_HOURS:
        raise PlanError(f"--join-hours: got {options.join_hours:g}; expected hours above 0, at most {MOST_HOURS:,}")
    if not options.linger_s >= 0:
        raise PlanError(f"--linger: got {options.linger_s:g}; expected seconds from 0")


def _check_guards(plan: Plan, guards: Guards) -> None:
    if plan.secagg != "none" and guards.anonymous:
        raise PlanError(
            "--anonymous: under secure aggregation updates come masked, in sessions that clients sign; expected none. "
            "Nobody sees a single update there anyway"
        )
    if plan.secagg != "none" and guards.max_norm is not None:
        raise PlanError(
            "--norm-bound: nobody can see the norm of an update under secure aggregation; expected none. What bounds "
            "updates there is the plan's secagg, CLIP for each number and CAP for n_k"
        )
    if guards.anonymous and (sampler := make_sampler(plan.sampling)).needs_losses:
        raise PlanError(
            f"--anonymous: with sampling '{sampler}', which looks at the losses of single clients, and updates come "
            "without names; expected another sampling, such as 'corrected', or no --anonymous"
        )
    usual = Guards()
    for name in ("max_weight", "times_median") if plan.secagg != "none" else ():
        if (got := getattr(guards, name)) != getattr(usual, name):
            raise PlanError(
                f"--{name.replace('_', '-')}: got {got:g}, but nobody can see a weight under secure aggregation; "
                "expected none. What bounds weights there is CAP of the plan's secagg"
            )


def without_authority(options: Options, plan: Plan) -> Options:
    """The options of a service for one of its plans: without the authority unless the plan's sessions are signed."""
    return options if _signed(plan) else replace(options, authority=None)


def _signed(plan: Plan) -> bool:
    if plan.secagg == "none":
        return False
    from fedavg.secagg.options import make_masking

    masking = make_masking(plan.secagg)
    return masking is not None and masking.signed


def _check_authority(plan: Plan, options: Options) -> None:
    signed = _signed(plan)
    if signed and options.authority is None:
        raise PlanError("secagg: sessions are signed; expected --authority with the public key that devices pin")
    if options.authority is not None and not signed:
        raise PlanError("--authority is for signed sessions; expected secagg = 'complete:CLIP:CAP:signed=true'")


def _check_plain(options: Options) -> None:
    for address in (options.listen, options.admin):
        if options.tls is None and address and not address.loopback:
            raise PlanError(
                f"plain HTTP on {address.host}: expected TLS (--cert and --key; 'fedavg certs' makes them for trying "
                "out). Without it only loopback addresses are served"
            )
