"""`Plan`: one frozen, hashable description of a run, the same from TOML, the command line or Python.

Each field carries its help text and its parser; the command line, the TOML reader and the error messages are made
from them, so an option exists in one place. Strings become values here, once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from json import dumps
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Union

from fedavg import specs
from fedavg.errors import PlanError
from fedavg.machine import cores
from fedavg.plan.identity import digest, identity
from fedavg.plan.options import (
    Optional,
    Parser,
    PartParser,
    PartsParser,
    any_number,
    batch,
    choice,
    data_value,
    flag_value,
    integer,
    judges,
    liars,
    masking,
    number,
    of_metric,
    option,
    scheduled,
    text,
)
from fedavg.plan.rates import Rate, listed, parse_rate, rate_at
from fedavg.types import FederatedData, Schedule, Work

if TYPE_CHECKING:
    from fedavg.adapters import Adapters
    from fedavg.algorithms import Algorithm
    from fedavg.attacks import Attack
    from fedavg.codecs import Codec
    from fedavg.data.changes import Changes
    from fedavg.data.partition import Partition
    from fedavg.metrics import Metric
    from fedavg.optimizers import Optimizer
    from fedavg.robust import PreAggregator, Reducer
    from fedavg.samplers import Sampler
    from fedavg.stages import Stage
    from fedavg.tasks.task import Task
    from fedavg.world import Closing, World


@dataclass(frozen=True)
class Plan:
    """Everything that decides the result of a run, and a few options (marked runtime) that do not.

    Parts (task, data, algorithm, codec, ...) are given as objects, by name, or by import name: 'my_package.mine:Prox'.

    >>> plan = Plan(task="mnist-2nn", C=0.1, E=5, algorithm="fedprox:0.1")
    >>> plan.E, plan.work(round=1).epochs
    (5, 5)
    """

    task: Union[str, "Task"] = option(
        "mnist-2nn", PartParser("fedavg.tasks", "Task"), "what is learned: a task's name, or module:name of your own"
    )
    data: str | FederatedData = option("mnist", data_value, "the data set: its name, or module:name of your own")
    partition: Union[str, "Partition", None] = option(
        None,
        Optional(PartParser("fedavg.data.partition", "Partition")),
        "how clients get examples: iid, shards, dirichlet:0.5, ... [the data set's own]",
    )
    changes: Union[str, "Changes", None] = option(
        None,
        Optional(PartParser("fedavg.data.changes", "Changes")),
        "data that changes by round: arrivals, deletions, window, drift",
    )
    clients: int | None = option(None, Optional(integer(1)), "K, the number of clients [the data set's own]")
    holdout: float = option(
        0.0,
        number(0, 0.9),
        "share of each client's examples kept out of training, for evaluation on that client",
    )
    adapters: Union[str, "Adapters", None] = option(
        None,
        Optional(PartParser("fedavg.adapters", "Adapters")),
        "train and send only small changes of a frozen module: lora:r=8 (docs/adapters.md)",
    )
    frozen: str | None = option(
        None, Optional(text), "fingerprint of the frozen weights; others are refused [not checked]"
    )
    algorithm: Union[str, "Algorithm"] = option(
        "fedavg",
        PartParser("fedavg.algorithms", "Algorithm"),
        "fedavg, fedprox, scaffold, fedadam, ... (docs/algorithms.md has all); settings after colons",
    )
    C: float = option(0.1, number(0, 1), "C, the fraction of clients in a round; 0 is one client", flag="-C")
    E: int | str | Schedule = option(
        1, scheduled(integer(1)), "E, local epochs a round; '20,100:5' is 5 from round 100 on", flag="-E"
    )
    B: float | str | Schedule = option(
        10, scheduled(batch), "B, the local batch size; inf is all local data; may change by round as E", flag="-B"
    )
    drop_last: bool = option(False, flag_value, "skip the short last batch of each epoch, unless it is the only one")
    lr: float | str | Rate | Callable[[int], float] = option(
        0.1, parse_rate, "eta, the learning rate; may change by round: '0.1,100:0.01', cosine:0.1 (docs/training.md)"
    )
    lr_decay: float = option(1.0, number(0, 1, above=True), "eta is multiplied by this after each round")
    optimizer: Union[str, "Optimizer"] = option(
        "sgd",
        PartParser("fedavg.optimizers", "Optimizer"),
        "how clients step: sgd:momentum=0.9:weight_decay=1e-4, adam, adamw; settings after colons",
    )
    rounds: int = option(100, integer(1), "the largest number of rounds")
    target: float | str | None = option(
        None,
        Optional(of_metric(any_number, number(0, 1, above=True))),
        "stop at this accuracy, or at f1=0.8, or at clients.f1=0.8 (the f1 that clients find)",
    )
    patience: int | str | None = option(
        None,
        Optional(of_metric(integer(1))),
        "stop after this many rounds without a better accuracy (or the task's first metric); loss=20 watches the loss",
    )
    metrics: Sequence[Union[str, "Metric"]] = option(
        (),
        PartsParser(PartParser("fedavg.metrics", "Metric")),
        "metrics in addition to the task's own: f1:10,topk:5 (docs/metrics.md)",
    )
    evaluate: str = option(
        "auto", judges, "who evaluates: server (its test set), clients (what they hold out), server,clients, none"
    )
    eval_clients: int | None = option(
        None, Optional(integer(1)), "clients that evaluate the model each time, drawn by the seed [all]"
    )
    eval_every: int = option(1, integer(1), "rounds from one evaluation to the next; the last is always evaluated")
    eval_train: bool = option(False, flag_value, "evaluate on the whole training set too")
    seed: int = option(0, integer(0), "every random draw of the run follows from it")
    codec: Union[str, "Codec"] = option(
        "float32",
        PartParser("fedavg.codecs", "Codec"),
        "how updates are encoded: float32, stc:0.01, entropy:quantise:4, ...",
    )
    downlink: Union[str, "Codec"] = option(
        "float32",
        PartParser("fedavg.codecs", "Codec"),
        "how the server's change is encoded; float32 sends the whole model",
    )
    secagg: str = option("none", masking, "secure aggregation: none, complete:CLIP:CAP or sparse:CLIP:CAP")
    stages: Sequence[Union[str, "Stage"]] = option(
        (),
        PartsParser(PartParser("fedavg.stages", "Stage")),
        "steps around the sum, in order: clip:1.0,weigh:equal,noise:1.1",
    )
    sampling: Union[str, "Sampler"] = option(
        "fixed",
        PartParser("fedavg.samplers", "Sampler"),
        "who is asked: fixed (m at random), poisson, weighted (by n_k), turns, choice:D (by losses), oort, corrected",
    )
    world: Union[str, "World", None] = option(
        None,
        Optional(PartParser("fedavg.world", "World")),
        "a simulated clock: who is there when, on what devices: always, diurnal, markov, trace:FILE (docs/world.md)",
    )
    closing: Union[str, "Closing"] = option(
        "all",
        PartParser("fedavg.world", "Closing"),
        "when a round has enough: all, deadline:SECONDS, quorum:SHARE; over=1.3 asks more clients than are needed",
    )
    reducer: Union[str, "Reducer", None] = option(
        None,
        Optional(PartParser("fedavg.robust", "Reducer")),
        "a rule over single updates in place of the weighted mean: median, trimmed:0.3, krum:0.2, ... (docs/robust.md)",
    )
    pre: Sequence[Union[str, "PreAggregator"]] = option(
        (),
        PartsParser(PartParser("fedavg.robust", "PreAggregator")),
        "steps before the reducer, in order: clip:2,nnm:0.2; also bucket:2, arc:0.2",
    )
    attack: Union[str, "Attack", None] = option(
        None,
        Optional(PartParser("fedavg.attacks", "Attack")),
        "how some simulated clients lie: signflip, alie, labelflip, backdoor:0, ... (docs/robust.md)",
    )
    attackers: float | Sequence[int] = option(
        0.0, liars, "who lies: a share of the clients, drawn by the seed, or their numbers: 3,7"
    )
    dp_epsilon: float | None = option(
        None, Optional(number(0, inf, above=True)), "stop before the round that would cost more privacy than this"
    )
    dp_delta: float | None = option(
        None, Optional(number(0, 0.5, above=True)), "delta of the reported privacy [clients^-1.1]"
    )
    noise_source: str = option(
        "seeded",
        choice("seeded", "os"),
        "noise and cohorts from the seed (repeatable: for simulation) or from OS entropy",
    )
    engine: str = option(
        "auto", choice("auto", "graph", "plain"), "how clients train: graph (fast), plain, or auto (graph if possible)"
    )
    device: str = option("cpu", text, "where clients train: cpu or cuda")
    uplink: float = option(1.0, number(0, inf, above=True), "MB/s that a client uploads at, for the simulated clock")
    workers: int = option(cores(), integer(1), "processes that train clients [one per usable core]", runtime=True)
    data_dir: str | None = option(None, Optional(text), "where data sets are kept", runtime=True)
    worker_timeout: float | None = option(
        None,
        Optional(number(0, inf, above=True)),
        "seconds after which a silent worker is replaced [20 times what earlier jobs took, at least 60]",
        runtime=True,
    )
    start_method: str = option(
        "auto",
        choice("auto", "fork", "spawn", "forkserver"),
        "how local workers start: fork, spawn, forkserver, or auto (fork on Linux, else spawn)",
        runtime=True,
    )
    checkpoint_s: float = option(10.0, number(0, inf), "seconds between checkpoints", runtime=True)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            try:
                object.__setattr__(self, spec.name, spec.metadata["parse"](value))
            except ValueError as error:
                raise PlanError(f"{spec.name}: got {_shown(value)}; expected {error}") from None
        if not isinstance(self.lr, float | str):  # a user's own function: its answers count, in the digest too
            object.__setattr__(self, "lr", listed(self.lr, self.rounds))
        self._check_data()

    def _check_data(self) -> None:
        """Data of a user's own is divided among clients already: an option that would do nothing is an error.

        (A server has `clients` of installed data too: as many devices are to come.)
        """
        from fedavg.data import is_named

        own = not (isinstance(self.data, str) and is_named(self.data))
        without_effect = {"partition": own, "clients": own and not isinstance(self.data, str)}
        for name in (name for name, ignored in without_effect.items() if ignored):
            if (value := getattr(self, name)) is not None:
                raise PlanError(
                    f"{name}: got {_shown(value)} with data of your own, which has its clients already; leave it out, "
                    f"or divide the examples where the data is made, as fedavg.from_dataset(..., {name}=...) does"
                )

    def work(self, round: int) -> Work:
        """What clients do in round t = 1, 2, ..."""
        E, B = self.schedule("E"), self.schedule("B")
        return Work(
            round, int(E.at(round)), B.at(round), rate_at(self.rate, round, self.rounds) * self.lr_decay ** (round - 1)
        )

    @property
    def eta(self) -> float:
        """The learning rate of round 1."""
        return rate_at(self.rate, 1, self.rounds)

    @property
    def rate(self) -> float | str:
        """eta as a plan keeps it: a number, or its text (`rates.py`)."""
        assert isinstance(self.lr, float | str), "made so by __post_init__"
        return self.lr

    def schedule(self, name: str) -> Schedule:
        """An option that may change by round, as a schedule."""
        value = getattr(self, name)
        return value if isinstance(value, Schedule) else Schedule(((1, value),))

    def to_dict(self, *, runtime: bool = True) -> dict[str, object]:
        """The plan as plain values; an object given from Python is shown by its name."""
        chosen = [spec.name for spec in fields(self) if runtime or not spec.metadata["runtime"]]
        return {name: _plain(getattr(self, name)) for name in chosen}

    def objects(self) -> list[tuple[str, object]]:
        """The parts that have no text form, by the name of their option: a file cannot hold them."""
        return [(name, part) for name, part in self.parts() if not isinstance(part, str)]

    def parts(self) -> list[tuple[str, object]]:
        """All parts, as text or object, by the name of their option."""
        values = [(spec.name, getattr(self, spec.name)) for spec in fields(self)]
        flat = [(name, item) for name, value in values for item in (value if isinstance(value, tuple) else (value,))]
        chosen = [(name, item) for name, item in flat if name in part_options() or isinstance(item, specs.Pluggable)]
        return [(name, item) for name, item in chosen if item is not None]

    def to_toml(self) -> str:
        rows = [
            f"{name} = {_toml(value)}  # {help_of(name)}" if value is not None else f"# {name} = ?  {help_of(name)}"
            for name, value in self.to_dict().items()
        ]
        return "\n".join(rows) + "\n"

    @cached_property
    def digest(self) -> str:
        """Identifies the run: plans with the same digest give the same model, bit for bit.

        Options at their defaults do not count: a run can be resumed, and its record found, by a later version that has
        more options. So the default of an option that was released must never change. A part that has no text counts
        by what it is (`identity`); data by its name, and by its fingerprint in the record of the run.
        """
        counted = {
            spec.name: _counted(getattr(self, spec.name)) for spec in fields(self) if not spec.metadata["runtime"]
        }
        chosen = {name: value for name, value in counted.items() if value != _plain(default_of(name))}
        return digest(chosen)


def _options_text() -> str:
    rows = [f"    {spec.name:<15}{spec.metadata['help']} [{spec.default}]" for spec in fields(Plan)]
    return "\n".join(["", "    The options, and their defaults:", "", *rows, ""])


if Plan.__doc__:  # none under python -OO
    Plan.__doc__ += _options_text()


def default_of(name: str) -> object:
    return getattr(_defaults(), name)


@cache
def _defaults() -> Plan:
    return Plan()


@cache
def part_options() -> dict[str, PartParser | PartsParser]:
    """The options that are parts in three forms, with what reads them."""
    parsers = {spec.name: _inner(spec.metadata["parse"]) for spec in fields(Plan)}
    return {name: parser for name, parser in parsers.items() if isinstance(parser, PartParser | PartsParser)}


def _inner(parser: Parser) -> Parser:
    return parser.parser if isinstance(parser, Optional) else parser


def option_names() -> list[str]:
    return [spec.name for spec in fields(Plan)]


def help_of(name: str) -> str:
    return str(next(spec.metadata["help"] for spec in fields(Plan) if spec.name == name))


def make_plan(values: Mapping[str, object], source: str = "the plan") -> Plan:
    """A plan from names and values; an unknown name is an error that lists the known ones."""
    unknown = sorted(set(values) - set(option_names()))
    if unknown:
        raise PlanError(f"{source}: unknown option '{unknown[0]}'; expected one of {', '.join(option_names())}")
    return replace(Plan(), **values)  # type: ignore[arg-type]


def check_plan(plan: object, what: str) -> None:
    """Refuses anything else that is given to a function that takes a plan."""
    if not isinstance(plan, Plan):
        raise PlanError(
            f"{what}: got {plan!r} of type {type(plan).__name__}; expected a fedavg.Plan, as in "
            f"fedavg.{what}(fedavg.Plan(task='mnist-2nn', data='mnist'))"
        )


def _shown(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _plain(value: object) -> object:
    if isinstance(value, Schedule):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | None):
        return value
    return f"object:{getattr(value, 'name', type(value).__name__)}"


def _counted(value: object) -> object:
    """What an option is to the digest."""
    if isinstance(value, tuple):
        return [_counted(item) for item in value]
    if isinstance(value, specs.Pluggable) and not isinstance(value, FederatedData):
        return f"object:{digest(identity(value))}"
    return _plain(value)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and (not isfinite(value) or isnan(value)):
        return str(value)
    return dumps(value, ensure_ascii=False)
