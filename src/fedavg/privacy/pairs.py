"""Which parts work together in a private run, as data: used to refuse plans, and to make the table in the docs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedavg.errors import PlanError
from fedavg.stages.stage import Stage

if TYPE_CHECKING:
    from fedavg.draft import Draft

Test = Callable[["Draft"], bool]


@dataclass(frozen=True)
class Pair:
    """Two parts. `refused` tells whether a plan combines them in a way that fails; pairs that always work have none."""

    first: str
    second: str
    why: str
    refused: Test | None = None


def check_pairs(draft: "Draft") -> None:
    """Refuse a plan whose parts do not fit, with the reason."""
    for pair in PAIRS:
        if pair.refused and pair.refused(draft):
            raise PlanError(f"{pair.first} with {pair.second}: {pair.why}")


def table() -> str:
    """The pairs as Markdown."""
    rows = [f"| {p.first} | {p.second} | {'no' if p.refused else 'yes'} | {p.why} |" for p in PAIRS]
    return "\n".join(["| this | with this | works | why |", "|---|---|---|---|", *rows])


def _place(draft: "Draft", test: Callable[[Stage], bool]) -> int:
    """The index of the first such stage; -1 if there is none."""
    return next((place for place, stage in enumerate(draft.stages) if test(stage)), -1)


def _bound(draft: "Draft") -> int:
    return _place(draft, lambda stage: stage.bounds)


def _private(draft: "Draft") -> int:
    """The index of the first noise stage, no matter who adds the noise."""
    return _place(draft, lambda stage: stage.mechanism is not None)


def _adds(stage: Stage, *who: str) -> bool:
    return stage.mechanism is not None and stage.mechanism.by in who


def _noise(draft: "Draft") -> int:
    """The index of the noise on the sum, whether the server or the clients add it."""
    return _place(draft, lambda stage: _adds(stage, "server", "clients"))


def _alone(draft: "Draft") -> int:
    """The index of the noise that each client adds for itself."""
    return _place(draft, lambda stage: _adds(stage, "each"))


def _discrete(draft: "Draft") -> bool:
    return any(stage.mechanism and stage.mechanism.bits for stage in draft.stages)


def _sees_all(draft: "Draft") -> bool:
    return draft.attack is not None and draft.attack.sees == "honest"


PAIRS: tuple[Pair, ...] = (
    Pair("clip (all, layer, quantile)", "noise", "the noise is scaled by the clipping norm"),
    Pair(
        "noise", "no clip before it", "without a bound no noise is enough; put clip:1.0 first",
        lambda s: _noise(s) >= 0 and not 0 <= _bound(s) < _noise(s),
    ),
    Pair(
        "noise or localdp", "weights n_k",
        "a client with much data would count for more than the noise covers; put weigh:equal or weigh:cap=100 first",
        lambda s: _private(s) >= 0 and not 0 <= _place(s, lambda stage: stage.caps_weight) < _private(s),
    ),
    Pair(
        "noise or localdp", "another stage after it", "the noise must come last",
        lambda s: _private(s) >= 0 and max(_noise(s), _alone(s)) != len(s.stages) - 1,
    ),
    Pair(
        "noise", "localdp", "two mechanisms, two budgets: a run keeps one ledger; choose one of them",
        lambda s: _noise(s) >= 0 and _alone(s) >= 0,
    ),
    Pair(
        "clip with a quantile", "localdp", "the count of clients within the norm costs privacy too; use noise",
        lambda s: any(stage.adapts for stage in s.stages) and _alone(s) >= 0,
    ),
    Pair(
        "clip", "another clip", "one bound is enough; leave one of them out",
        lambda s: sum(stage.bounds for stage in s.stages) > 1,
    ),
    Pair("noise where=server", "any codec", "the bound is enforced again on what arrives, whatever the codec did"),
    Pair(
        "noise where=clients, or with bits", "a codec that is not additive",
        "what it rounds or leaves out of the noise is missing in the sum; use codec float32",
        lambda s: _noise(s) >= 0 and s.stages[_noise(s)].exceeds_bounds and not s.codec.additive,
    ),
    Pair(
        "noise with bits", "weigh:cap", "a weight below 1 leaves the grid of the discrete noise; use weigh:equal",
        lambda s: _discrete(s) and any(stage.caps_weight and not stage.weighs_alike for stage in s.stages),
    ),
    Pair(
        "noise or localdp", "a codec with error feedback",
        "what is left out of one update is sent with a later one, beyond that round's bound; choose a codec without",
        lambda s: _private(s) >= 0 and s.codec.keeps_residual,
    ),
    Pair(
        "noise or localdp", "algorithm sgd", "all data is at one client: there is no crowd to hide in",
        lambda s: _private(s) >= 0 and s.algorithm.pools_data,
    ),
    Pair(
        "noise or localdp", "fednova, adaptive", "they need clients' own numbers, which stay on the client; use fedavg",
        lambda s: _private(s) >= 0 and tuple(s.algorithm.metrics) != ("train_loss",),
    ),
    Pair(
        "noise or localdp", "eval_train", "an exact score on the training data is a release without noise",
        lambda s: _private(s) >= 0 and s.plan.eval_train,
    ),
    Pair(
        "noise or localdp", "an asynchronous algorithm",
        "cohorts are not drawn independently, as the ledger assumes; use one whose cohort starts together",
        lambda s: _private(s) >= 0 and s.algorithm.asynchronous,
    ),
    Pair(
        "noise or localdp", "evaluation by clients",
        "what clients find on their own examples is a release without noise; use evaluate 'server'",
        lambda s: _private(s) >= 0 and s.judged_by_clients,
    ),
    Pair(
        "secure aggregation", "a codec other than float32",
        "masked updates are elements of a ring, which is its own encoding; use codec float32",
        lambda s: s.secagg is not None and s.plan.codec != "float32",
    ),
    Pair(
        "secure aggregation", "an asynchronous algorithm",
        "a version of the model may have one client, whose sum is its update; use one whose cohort starts together",
        lambda s: s.secagg is not None and s.algorithm.asynchronous,
    ),
    Pair("noise where=clients", "secure aggregation", "nobody sees a sum without noise, not even the server"),
    Pair("noise where=server", "secure aggregation", "the server sees the sum of a cohort, and publishes it noised"),
    Pair("noise with bits", "secure aggregation", "noise and updates are multiples of 2^-bits: exact in the ring"),
    Pair("noise", "sampling fixed or poisson", "the ledger knows both; poisson costs less"),
    Pair("noise", "sampling turns", "everyone knows who takes part when, so each round is charged in full"),
    Pair(
        "noise or localdp", "sampling choice or oort",
        "clients would report their losses, which are not noised; use fixed",
        lambda s: _private(s) >= 0 and s.sampler.needs_losses,
    ),
    Pair(
        "secure aggregation", "sampling choice or oort", "the server would see the loss of single clients; use fixed",
        lambda s: s.secagg is not None and s.sampler.needs_losses,
    ),
    Pair(
        "secure aggregation", "a reducer",
        "a rule over single updates must see them, and masks hide them; leave one of the two out",
        lambda s: s.secagg is not None and s.defence is not None and s.defence.reducer.single_updates,
    ),
    Pair("secure aggregation", "an attack on examples or on a liar's own update", "liars mask their updates too"),
    Pair(
        "secure aggregation", "an attack that sees the honest updates",
        "nobody sees them under masks; use one that knows only its own, such as signflip or labelflip",
        lambda s: s.secagg is not None and _sees_all(s),
    ),
    Pair(
        "secure aggregation", "attack nan or inf", "the elements of a ring are always numbers; use scaled or gaussian",
        lambda s: s.secagg is not None and s.attack is not None and not s.attack.finite,
    ),
    Pair(
        "noise", "a reducer",
        "the noise is scaled to one client's effect on the mean, not on the rule; use localdp, or no reducer",
        lambda s: s.defence is not None and _noise(s) >= 0,
    ),
    Pair("localdp", "a reducer", "each update is private before the rule sees it"),
    Pair(
        "a reducer", "clip with a quantile",
        "the count of clients within the norm is a number of each update, which a rule would treat as a weight",
        lambda s: s.defence is not None and any(stage.appends for stage in s.stages),
    ),
    Pair(
        "a reducer, or an attack that sees the honest updates", "an asynchronous algorithm",
        "updates of one round start from different models; use one whose cohort starts together",
        lambda s: s.algorithm.asynchronous and (s.defence is not None or _sees_all(s)),
    ),
    Pair(
        "a reducer", "fednova, adaptive", "they trust clients' own numbers; use fedavg",
        lambda s: s.defence is not None and tuple(s.algorithm.metrics) != ("train_loss",),
    ),
)  # fmt: skip
