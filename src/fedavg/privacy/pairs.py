"""Which parts work together in a private run, as data: plans are refused by it, and the docs' table is made from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedavg.errors import PlanError
from fedavg.stages.clip import Clip
from fedavg.stages.localdp import LocalDP
from fedavg.stages.noise import Noise
from fedavg.stages.weigh import Weigh

if TYPE_CHECKING:
    from fedavg.setup import Draft

Test = Callable[["Draft"], bool]


@dataclass(frozen=True)
class Pair:
    """Two parts. `refused` says of a plan that it has both in the way that does not work; pairs that work have none."""

    first: str
    second: str
    why: str
    refused: Test | None = None


def check_pairs(setup: "Draft") -> None:
    """Refuse a plan whose parts do not fit, with the reason."""
    for pair in PAIRS:
        if pair.refused and pair.refused(setup):
            raise PlanError(f"{pair.first} with {pair.second}: {pair.why}")


def table() -> str:
    """The pairs as Markdown."""
    rows = [f"| {p.first} | {p.second} | {'no' if p.refused else 'yes'} | {p.why} |" for p in PAIRS]
    return "\n".join(["| this | with this | works | why |", "|---|---|---|---|", *rows])


def _place(setup: "Draft", kind: type) -> int:
    """Where the first stage of a kind stands; -1 if there is none."""
    return next((place for place, stage in enumerate(setup.stages) if isinstance(stage, kind)), -1)


def _has(setup: "Draft", kind: type) -> bool:
    return _place(setup, kind) >= 0


def _private(setup: "Draft") -> bool:
    return _has(setup, Noise) or _has(setup, LocalDP)


def _noise(setup: "Draft") -> Noise | None:
    return next((stage for stage in setup.stages if isinstance(stage, Noise)), None)


def _adapts(setup: "Draft") -> bool:
    return any(isinstance(stage, Clip) and stage.adapts for stage in setup.stages)


def _discrete(setup: "Draft") -> bool:
    noise = _noise(setup)
    return noise is not None and noise.bits > 0


def _on_clients(setup: "Draft") -> bool:
    noise = _noise(setup)
    return noise is not None and noise.exceeds_bounds


PAIRS: tuple[Pair, ...] = (
    Pair("clip (all, layer, quantile)", "noise", "the clipping norm is what the noise is measured by"),
    Pair(
        "noise", "no clip before it", "without a bound there is nothing that the noise could hide; put clip:1.0 first",
        lambda s: _has(s, Noise) and not 0 <= _place(s, Clip) < _place(s, Noise),
    ),
    Pair(
        "noise or localdp", "weights n_k",
        "a client with much data would count for more than the noise covers; put weigh:equal or weigh:cap=100 before",
        lambda s: _private(s) and not 0 <= _place(s, Weigh) < max(_place(s, Noise), _place(s, LocalDP)),
    ),
    Pair(
        "noise or localdp", "another stage after it", "the last thing that happens to an update is its noise",
        lambda s: _private(s) and max(_place(s, Noise), _place(s, LocalDP)) != len(s.stages) - 1,
    ),
    Pair(
        "noise", "localdp", "two mechanisms, two budgets: a run keeps one ledger; choose one of them",
        lambda s: _has(s, Noise) and _has(s, LocalDP),
    ),
    Pair(
        "clip with a quantile", "localdp", "the count of clients within the norm costs privacy too; use noise",
        lambda s: _adapts(s) and _has(s, LocalDP),
    ),
    Pair(
        "clip", "another clip", "one bound is enough; leave one of them out",
        lambda s: sum(isinstance(stage, Clip) for stage in s.stages) > 1,
    ),
    Pair("noise where=server", "any codec", "the bound is enforced again on what arrives, whatever the codec did"),
    Pair(
        "noise where=clients, or with bits", "a codec that is not additive",
        "what it rounds or leaves out of the noise is missing in the sum; use codec float32",
        lambda s: _on_clients(s) and not s.codec.additive,
    ),
    Pair(
        "noise with bits", "weigh:cap", "a weight below 1 leaves the grid of the discrete noise; use weigh:equal",
        lambda s: _discrete(s) and any(isinstance(stage, Weigh) and stage.cap != "equal" for stage in s.stages),
    ),
    Pair(
        "noise or localdp", "a codec with error feedback",
        "what is left out of one update is sent with a later one, beyond that round's bound; choose a codec without",
        lambda s: _private(s) and s.codec.keeps_residual,
    ),
    Pair(
        "noise or localdp", "algorithm sgd", "all data is in the hands of one client: there is no crowd to hide in",
        lambda s: _private(s) and s.algorithm.pools_data,
    ),
    Pair(
        "noise or localdp", "fednova, adaptive", "they need clients' own numbers, which stay on the client; use fedavg",
        lambda s: _private(s) and set(s.algorithm.metrics) != {"train_loss"},
    ),
    Pair(
        "noise or localdp", "eval_train", "an exact score on the training data is a release without noise",
        lambda s: _private(s) and s.plan.eval_train,
    ),
    Pair(
        "noise or localdp", "evaluation by clients",
        "what clients find on their own examples is a release without noise; use evaluate 'server'",
        lambda s: _private(s) and s.judged_by_clients,
    ),
    Pair(
        "secure aggregation", "a codec other than float32",
        "what is masked and sent are the elements of a ring, which is its own encoding; use codec float32",
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
    Pair("noise", "sampling fixed or poisson", "both are accounted for as what they are; poisson costs less"),
    Pair("noise", "sampling turns", "everybody knows who takes part when: each round is charged in full"),
    Pair(
        "noise or localdp", "sampling choice", "clients would tell their losses, which are not noised; use fixed",
        lambda s: _private(s) and s.sampler.needs_losses,
    ),
    Pair(
        "secure aggregation", "sampling choice", "the server would see the loss of single clients; use fixed",
        lambda s: s.secagg is not None and s.sampler.needs_losses,
    ),
)  # fmt: skip
