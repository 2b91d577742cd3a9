"""`fedavg privacy`: the noise that a budget needs, the budget that noise needs, or the rounds that both allow."""

import json
from typing import TYPE_CHECKING, Any

import click

from fedavg.errors import PlanError

if TYPE_CHECKING:
    from fedavg.dp.accounting import Accountant, Sampling


@click.command()
@click.option("--epsilon", type=float, help="The budget.")
@click.option("--noise", type=float, help="The noise multiplier: noise on the sum over the clipping norm.")
@click.option("--rounds", type=click.IntRange(1), help="How many rounds are published.")
@click.option("--clients", type=click.IntRange(1), required=True, help="K, how many clients there are.")
@click.option("--cohort", type=click.IntRange(1), required=True, help="m, how many take part in a round.")
@click.option("--delta", type=float, help="The chance that epsilon does not hold [clients^-1.1].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def privacy(
    epsilon: float | None,
    noise: float | None,
    rounds: int | None,
    clients: int,
    cohort: int,
    delta: float | None,
    as_json: bool,
) -> None:
    """Give two of --epsilon, --noise and --rounds; get the third.

    \b
    fedavg privacy --epsilon 2 --delta 1e-6 --clients 100000 --cohort 1000 --rounds 500
    fedavg privacy --noise 1.0 --delta 1e-6 --clients 100000 --cohort 1000 --rounds 500

    Answers are for DP-FedAvg with clipped updates, weights of at most 1 and a fixed denominator, and protect a client
    with all of its data. They hold against anyone who sees the models but not who took part.
    """
    if [epsilon, noise, rounds].count(None) != 1:
        raise PlanError("privacy: expected exactly two of --epsilon, --noise and --rounds")
    if cohort > clients:
        raise PlanError(f"privacy: got a cohort of {cohort} out of {clients} clients; expected at most all of them")
    delta = clients**-1.1 if delta is None else delta
    rows = [_answer(*case, epsilon, noise, rounds, delta) for case in _cases(clients, cohort)]
    wanted = {"noise": "noise_multiplier", "epsilon": "epsilon", "rounds": "rounds"}[
        "noise" if noise is None else "epsilon" if epsilon is None else "rounds"
    ]
    report = {"wanted": wanted, "clients": clients, "cohort": cohort, "delta": delta, "answers": rows}
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)


def _cases(clients: int, cohort: int) -> "list[tuple[Sampling, Accountant]]":
    from fedavg.dp.accounting import FixedSize, PoissonSampling

    poisson, fixed = PoissonSampling(cohort / clients), FixedSize(clients, cohort)
    return [(poisson, "rdp"), (poisson, "pld"), (fixed, "rdp")]


def _answer(
    sampling: "Sampling",
    accountant: "Accountant",
    epsilon: float | None,
    noise: float | None,
    rounds: int | None,
    delta: float,
) -> dict[str, Any]:
    from fedavg.dp import accounting

    if noise is None:
        assert epsilon is not None
        assert rounds is not None
        noise = accounting.noise_for(epsilon, sampling, rounds, delta, accountant)
    elif epsilon is None:
        assert rounds is not None
        epsilon = accounting.epsilon(sampling, noise, rounds, delta, accountant)
    else:
        rounds = accounting.rounds_for(epsilon, sampling, noise, delta, accountant)
    return {
        "sampling": sampling.name,
        "relation": sampling.relation,
        "accountant": accountant,
        "epsilon": epsilon,
        "noise_multiplier": noise,
        "rounds": rounds,
    }


def _print(report: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{report['cohort']:,} of {report['clients']:,} clients a round, delta {report['delta']:.3g}"
    table = Table(box=box.SIMPLE, title=title)
    for heading in ("sampling", "accountant", "neighbours", "noise multiplier", "rounds", "epsilon"):
        table.add_column(heading, justify="right" if heading in ("noise multiplier", "rounds", "epsilon") else "left")
    for row in report["answers"]:
        figures = f"{row['noise_multiplier']:.4f}", f"{row['rounds']:,}", f"{row['epsilon']:.4f}"
        table.add_row(row["sampling"], row["accountant"], row["relation"], *figures)
    Console(width=100).print(table)
    click.echo(
        "poisson: every client by its own coin (--sampling poisson); fixed: cohorts of one size, as in the paper."
    )
    click.echo("In 'replace' a client can change the sum by twice the norm, in 'add or remove' by once.")
