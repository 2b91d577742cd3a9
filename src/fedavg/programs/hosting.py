"""What the runs of a service have in common: how their plans are read, and where each run is stored."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import time

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedavg.engine.model import Model
from fedavg.errors import PlanError
from fedavg.fleets.http.server.store import ChangeLog, Store, StoreError, SubmittedRun
from fedavg.fleets.http.server.store.address import is_postgresql
from fedavg.fleets.http.server.store.changes import RESTORED
from fedavg.fleets.http.server.store.copies import schema_of, snapshot
from fedavg.fleets.http.server.store.schema import LATEST
from fedavg.plan import Plan, make_plan
from fedavg.programs.servable import (
    Options,
    OwnData,
    by_closing,
    check_data_is_named,
    check_minimum,
    check_options,
    own_data,
    resolve_served,
    without_authority,
)
from fedavg.runlog.rundir import RunDir
from fedavg.setup import Setup
from fedavg.specs import importing_only


@dataclass(frozen=True)
class Hosting:
    """`allowed` are the packages that parts of submitted plans may come from."""

    options: Options
    allowed: Sequence[str]
    #: Refuses what this service cannot do, besides what no server can.
    check: Callable[[Setup, Options], None] = lambda _setup, _options: None

    def directory(self, number: int) -> Path:
        return self.options.directory / "runs" / str(number)

    def rounds(self, number: int) -> Store:
        """The database of one run."""
        if is_postgresql(self.options.database):
            store = Store.open(str(self.options.database), f"run_{number}")
        else:
            self.directory(number).mkdir(parents=True, exist_ok=True)
            store = Store.open(self.directory(number) / "fleet.db")
        store.old_states_kept = self.options.keep_rounds
        return store

    def bring_up_to_date(self) -> None:
        """Update the databases of runs left by an earlier version, so that a copy of the service has one version."""
        if is_postgresql(self.options.database):
            with snapshot(str(self.options.database)) as moment:
                behind = [number for number in moment.runs() if moment.schema(number) != LATEST]
        else:
            files = {int(file.parent.name): file for file in self.options.directory.glob("runs/*/fleet.db")}
            behind = [number for number, file in files.items() if schema_of(file) != LATEST]
        for number in behind:
            self.rounds(number).close()

    def committed(self, number: int) -> int:
        """The last committed round of a run that is not being served; 0 before its first."""
        if not is_postgresql(self.options.database) and not (self.directory(number) / "fleet.db").exists():
            return 0
        with self.rounds(number) as rounds:
            return rounds.last_round()

    def roll_back(self, run: SubmittedRun, to_round: int, by: str) -> dict[str, object]:
        """Take a run that is not being served back to an earlier round; returns what to record about it."""
        _, _, setup = self.resolved(self.plan(run.plan_toml))
        check_can_go_back(setup)
        now = time()
        with self.rounds(run.number) as rounds:
            rows, record = rounds.committed(), RunDir(self.directory(run.number))
            record.write_rows(rows[:to_round])  # the record must never have rounds that the database lacks
            try:
                ChangeLog(rounds.connections).roll_back(to_round, by, now)
            except StoreError:
                record.write_rows(rows)
                raise
        return {"at": int(now), "after_round": len(rows), "by": by, "to_round": to_round}

    def plan(self, text: str) -> Plan:
        """A submitted plan. This machine decides how fast and where it runs."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PlanError(f"the plan is not TOML: {error}") from None
        check_data_is_named(values)
        own = {spec.name: getattr(Plan(), spec.name) for spec in fields(Plan) if spec.metadata["runtime"]}
        return make_plan({**values, **own, "data_dir": values.get("data_dir")}, "the plan")

    def resolved(self, plan: Plan) -> tuple[Options, OwnData, Setup]:
        options = without_authority(self.options, plan)
        check_options(plan, options)
        with importing_only(self.allowed):
            data = own_data(plan)
            options = by_closing(plan, data, options)
            setup = resolve_served(plan, data, options.rules)
        check_minimum(setup, options.minimum)
        self.check(setup, options)
        return options, data, setup

    def housed(self, plan: Plan, number: int) -> tuple[Options, OwnData, Setup]:
        """The same for a run that is served here, which has a directory of its own."""
        options, data, setup = self.resolved(plan)
        directory = self.directory(number)
        directory.mkdir(parents=True, exist_ok=True)
        return replace(options, directory=directory), data, setup


def take_over(rounds: Store, plan: Plan, run: SubmittedRun) -> None:
    """From now on the run has this plan. Work for the run's previous plan no longer counts."""
    there = rounds.run()
    if there is not None and there.plan_digest != plan.digest:
        parked = rounds.open_round()
        if parked is not None:
            rounds.abandon_round(parked.round, parked.attempt, "the plan was extended")
        extensions = [change for change in run.changes if "to_round" not in change]
        ChangeLog(rounds.connections).take_plan(plan.to_toml(), plan.digest, extensions)
    rounds.save_run(plan.to_toml(), plan.digest, "devices")


def weights_of(setup: Setup, content: bytes) -> Tensor:
    """The flat weights, shape (P,), of a model file; refused unless its tensors have the task's names."""
    model = Model(setup.task, setup.plan.seed)
    try:
        model.module.load_state_dict(load(content))
    except (SafetensorError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PlanError(f"--init: the model does not fit task '{setup.plan.task}': {reason}") from None
    return model.vector.clone()


def check_can_go_back(setup: Setup) -> None:
    """A run can go back to an earlier round only if its devices need not go back as well."""
    reason = _beyond_the_server(setup)
    if reason:
        raise PlanError(f"rollback: {reason}; expected a run whose devices keep nothing between rounds")


def check_restored(setup: Setup, store: Store) -> None:
    """A run whose database is an older copy continues only if everything that counts is in the copy."""
    lost = [each for each in ChangeLog(store.connections).all() if each.what == RESTORED]
    lost = [each for each in lost if not each.entry["nothing_since"]]
    private = "what its rounds after the copy released is not on record, and cannot be taken back"
    reason = private if setup.budget else _beyond_the_server(setup)
    if lost and reason:
        raise PlanError(
            f"the database was restored from a copy: {reason}. Submit a new run, from its last model with --init; or "
            "restore with --nothing-since, if no server has run since the copy was made"
        )


def _beyond_the_server(setup: Setup) -> str:
    """Why the server alone cannot repeat rounds; empty if it can."""
    if setup.secagg:
        return "a device opens one sum of a round, and no other one of that number later"
    if setup.keeps_state:
        return "what devices keep between rounds cannot go back with the server"
    if setup.budget and setup.budget.releases != "model":
        return "a device sends one update with noise of its own for a round, and no other one later"
    return ""
