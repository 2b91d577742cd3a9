"""BatchNorm in federation: what happens, and what to do about it.

Batch normalisation keeps running statistics of what it sees. In federation they are averaged like weights, but each
client sees its own data: with only two digits per client the statistics of one client fit nobody else. Three networks
are trained on MNIST, once with similar clients and once with two digits per client:

    batch norm              statistics and weights are averaged
    group norm              has no statistics: the usual remedy
    batch norm, no average  normalises by the batch, also in evaluation (track_running_stats=False)

BatchNorm between fully connected layers also fails on a batch of one example, which a client's last batch may be.
Such a plan is refused before round 1 with the clients it concerns; `drop_last=True` leaves the short last batch out.

Run it:
    python examples/batch_norm.py

It prints the accuracy of each network on both kinds of clients, and the refusal. On this small problem the three end
within 0.03 of each other, so look before you replace a layer.
"""

import sys
from functools import partial

from torch import nn

import fedavg

TINY = "--tiny" in sys.argv
NORMS = {
    "batch norm": nn.BatchNorm2d,
    "group norm": partial(nn.GroupNorm, 4),
    "batch norm, no average": partial(nn.BatchNorm2d, track_running_stats=False),
}


def net(norm) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 8, 5, stride=2), norm(8), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2), norm(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4 * 4, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def plan(build, partition: str, **options) -> fedavg.Plan:
    task = fedavg.Task("digits", build)
    sizes = {"C": 0.02, "rounds": 1} if TINY else {"C": 0.1, "rounds": 15}
    settings = {"B": 20, "lr": 0.05, "eval_every": sizes["rounds"], **sizes, **options}
    return fedavg.Plan(task=task, data="mnist", partition=partition, **settings)


if __name__ == "__main__":
    for partition in ("shards:2",) if TINY else ("iid", "shards:2"):
        for name, norm in NORMS.items():
            accuracy = fedavg.run(plan(partial(net, norm), partition)).accuracy[-1]
            print(f"{partition:<9}{name:<24}accuracy {accuracy:.3f}", flush=True)
    try:
        fedavg.run(plan(perceptron, "iid", B=599))  # 600 examples each: the last batch has one
    except fedavg.TaskError as error:
        print(f"\nrefused: {error}")
    fedavg.run(plan(perceptron, "iid", B=599, drop_last=True, rounds=1))
    print("\nwith drop_last=True it trains")
