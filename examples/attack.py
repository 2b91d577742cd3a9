"""Training while some clients lie.

A fifth of the clients sends its update reversed and enlarged. The weighted mean, which FedAvg takes, has no
chance; a rule that looks at single updates does. Three runs on MNIST: nobody lies; a fifth lies and the mean is
taken; a fifth lies and each coordinate is averaged without its extremes, after each update was mixed with its
neighbours.

Run it:
    python examples/attack.py

It prints the accuracy of each run. (`docs/robust.md` has all attacks and rules. A rule over single updates excludes
secure aggregation, which hides them.)
"""

import sys

import fedavg

TINY = "--tiny" in sys.argv
LIES = {"attack": "signflip:4", "attackers": 0.2}
RUNS = {
    "nobody lies": {},
    "a fifth lies, mean": LIES,
    "a fifth lies, trimmed mean": {**LIES, "reducer": "trimmed:0.3", "pre": ["nnm:0.3"]},
}

if __name__ == "__main__":
    sizes = {"C": 0.06, "rounds": 1} if TINY else {"C": 0.2, "rounds": 20}
    for name, options in RUNS.items():
        plan = fedavg.Plan(
            task="mnist-2nn",
            data="mnist",
            partition="iid",
            B=20,
            lr=0.1,
            eval_every=sizes["rounds"],
            **sizes,
            **options,
        )
        print(f"{name:<28}accuracy {fedavg.run(plan).accuracy[-1]:.3f}", flush=True)
