"""Personalisation: each client tunes the shared model on its own data. Who gains, and who loses?

MNIST is dealt out with two digits per client. The shared model must know all ten digits, a client's own only two: a
few epochs of fine-tuning on a client's own examples should help. Every client judges both models on examples that it
held out of training.

Run it:
    python examples/personalisation.py

It prints the accuracy over clients before and after, and how many clients are better off.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import fedavg

TINY = "--tiny" in sys.argv

if __name__ == "__main__":
    plan = fedavg.Plan(
        task="mnist-2nn", data="mnist", partition="shards:2", clients=200 if TINY else 100, C=0.01 if TINY else 0.1,
        E=2, B=20, lr=0.05, rounds=1 if TINY else 20, eval_every=20, holdout=0.2,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        run = Path(folder, "run")
        fedavg.run(plan, run)
        found = fedavg.personalise(run, epochs=1 if TINY else 5)
    accuracy = found.to_dict()["metrics"]["accuracy"]
    for whose in ("shared", "own"):
        spread = accuracy[whose]
        print(f"{whose:<7} model: accuracy {spread['mean']:.3f} on average, {spread['p5']:.3f} at the fifth percentile")
    better = found.to_dict()["share_of_clients"]
    print(f"better off {better['better']:.0%}, the same {better['same']:.0%}, worse off {better['worse']:.0%}")
