"""Why our models take fewer rounds than the paper's: where their pixels lie.

We scale pixels to [0, 1]. TensorFlow's MNIST example of the paper's time scaled them to [-0.5, 0.5]. This trains the
2NN (to 97 %) or the CNN (to 99 %) both ways (C=0.1, E=1, B=10) at some rates and notes the rounds to the target; null
where it is not reached.

usage: python examples/paper/centred_pixels.py [--model 2nn] [--partitions iid,shards] [--scales "[0, 1];[-0.5, 0.5]"]
                                               [--rates 0.0215,0.0464,0.1,0.215] [--rounds 800] [--out FILE]
"""

import argparse
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

from torch import Tensor, nn

from fedavg import Plan, Task, run
from fedavg.errors import Diverged
from fedavg.tasks.mnist import cnn, image, pixels, two_nn

#: Model -> the module, its input of raw images, and the target.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor], float]] = {
    "2nn": (two_nn, pixels, 0.97),
    "cnn": (cnn, image, 0.99),
}
SHIFTS = {"[0, 1]": 0.0, "[-0.5, 0.5]": 0.5}


def rounds_to_target(model: str, scale: str, partition: str, lr: float, rounds: int) -> float | None:
    build, prepare, target = MODELS[model]
    task = Task(model, build, prepare=lambda x: prepare(x) - SHIFTS[scale], eval_batch=200)
    plan = Plan(
        task=task,
        data="mnist",
        partition=partition,
        C=0.1,
        E=1,
        B=10,
        lr=lr,
        rounds=rounds,
        target=target,
        workers=1,
    )
    try:
        return run(plan).summary.rounds_to_target
    except Diverged:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="2nn")
    parser.add_argument("--partitions", default="iid,shards")
    parser.add_argument("--scales", default=";".join(SHIFTS))
    parser.add_argument("--rates", default="0.0215,0.0464,0.1,0.215")
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for partition in options.partitions.split(","):
        for scale in options.scales.split(";"):
            rates = map(float, options.rates.split(","))
            reached = {str(lr): rounds_to_target(options.model, scale, partition, lr, options.rounds) for lr in rates}
            rows.append({"model": options.model, "partition": partition, "pixels": scale, "rounds_to_target": reached})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(
            json.dumps({"date": f"{date.today()}", "seed": 0, "rounds": options.rounds, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
