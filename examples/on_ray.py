"""The same plan on a Ray cluster, bit for bit.

Clients run in long-lived Ray actors, on this machine or on a cluster. Nothing of the plan changes: `fleet="ray"` is
all. The model is the one that the local fleet gives, down to the last bit.

Run it:
    pip install 'fedavg[ray]'
    python examples/on_ray.py                      # a Ray of its own on this machine
    python examples/on_ray.py --fleet ray:auto     # the cluster that is running

It prints the digest of the model from both fleets, and the seconds a round took.
"""

import sys

import fedavg

TINY = "--tiny" in sys.argv
WHERE = sys.argv[sys.argv.index("--fleet") + 1] if "--fleet" in sys.argv else "ray"

plan = fedavg.Plan(
    task="mnist-2nn", data="mnist", C=0.02 if TINY else 0.2, E=1, B=10, lr=0.1, rounds=1 if TINY else 5, eval_every=5,
    workers=1 if TINY else 2,
)  # fmt: skip

if __name__ == "__main__":
    digests = set()
    for fleet in ("local", WHERE):
        summary = fedavg.run(plan, fleet=fleet).summary
        digests.add(summary.model_sha256)
        print(f"{fleet:<8}{summary.model_sha256[:16]}  {summary.seconds_per_round:.3f} s a round", flush=True)
    print("the same model" if len(digests) == 1 else "NOT the same model")
