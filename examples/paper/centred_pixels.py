"""Why our 2NN takes fewer rounds than the paper's: where its pixels lie.

We scale pixels to [0, 1]. TensorFlow's MNIST example of the paper's time scaled them to [-0.5, 0.5]. This trains the
2NN both ways (C=0.1, E=1, B=10) at four rates and notes the rounds to 97 %; null where they are not reached.

usage: python examples/paper/centred_pixels.py [--partitions iid,shards] [--rounds 800] [--out FILE]
"""

import argparse
import json
from datetime import date
from pathlib import Path

from torch import Tensor

from fedavg import Plan, Task, run
from fedavg.errors import Diverged
from fedavg.tasks.mnist import pixels, two_nn


def centred(x: Tensor) -> Tensor:
    return pixels(x) - 0.5


SCALES = {"[0, 1]": Task("2nn", two_nn, prepare=pixels), "[-0.5, 0.5]": Task("2nn", two_nn, prepare=centred)}
RATES = (0.0215, 0.0464, 0.1, 0.215)


def rounds_to_97(task: Task, partition: str, lr: float, rounds: int) -> float | None:
    plan = Plan(
        task=task,
        data="mnist",
        partition=partition,
        C=0.1,
        E=1,
        B=10,
        lr=lr,
        rounds=rounds,
        target=0.97,
        workers=1,
    )
    try:
        return run(plan).summary.rounds_to_target
    except Diverged:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="iid,shards")
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for partition in options.partitions.split(","):
        for scale, task in SCALES.items():
            reached = {str(lr): rounds_to_97(task, partition, lr, options.rounds) for lr in RATES}
            rows.append({"partition": partition, "pixels": scale, "rounds_to_97": reached})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"date": f"{date.today()}", "seed": 0, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
