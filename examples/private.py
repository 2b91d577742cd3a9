"""Differential privacy and secure aggregation together.

Two promises that need each other:

    secure aggregation      updates are masked, so the server sees only the sum over a cohort, never a single update
    differential privacy    the sum itself hardly depends on any one client: each is clipped, and noise is added

Here the noise is made by the clients, each a share of it (`where=clients`), so that not even the server sees a sum
without noise. Epsilon bounds what the released models reveal about any single client; the ledger counts it round by
round.

Run it:
    pip install 'fedavg[secagg,privacy]'
    python examples/private.py

It prints accuracy and epsilon as training goes on. (With 500 clients the noise is felt. Privacy is cheap where there
are many clients: `fedavg privacy --help` finds noise and cohort for a population.)
"""

import sys

import fedavg

TINY = "--tiny" in sys.argv

plan = fedavg.Plan(
    task="mnist-2nn",
    data="mnist",
    clients=500,
    C=0.008 if TINY else 0.1,
    E=1,
    B=10,
    lr=0.1,
    rounds=1 if TINY else 30,
    eval_every=1 if TINY else 5,
    stages=["clip:0.5", "weigh:equal", "noise:0.8:where=clients"],
    secagg="complete:2:1",  # numbers up to 2, which has room for the noise; each client counts as 1
    dp_delta=1e-3,
)

if __name__ == "__main__":

    def watch(event: fedavg.Event) -> None:
        if isinstance(event, fedavg.Round) and event.test:
            print(
                f"round {event.round}: accuracy {event.test['accuracy']:.3f}, epsilon {event.epsilon:.2f}", flush=True
            )

    summary = fedavg.run(plan, watch=watch).summary
    privacy = summary.privacy
    print(f"({privacy['epsilon']:.2f}, {privacy['delta']:g})-differentially private, by client")
    print(f"{summary.bytes_up / 1e6:.1f} MB up, masks and shares included")
