"""Why our CNN takes twice the paper's rounds with one client a round (Table 1, C=0, E=5, B=10, IID): how it starts?

The paper's CNN has the layers of TensorFlow's MNIST example of its time, which scaled pixels to [-0.5, 0.5] and drew
weights from a normal distribution of deviation 0.1, cut at two deviations, with biases of 0 for the first layer and 0.1
for the others. We scale to [0, 1] and start as PyTorch does. This trains with either or both and notes the rounds to
99 %; null where they are not reached. What FILE has is not run again.

usage: python examples/paper/one_client.py [--starts ours,pixels,weights,both] [--rates 0.0464,0.1,0.215]
                                           [--rounds 120] [--out FILE]
"""

import argparse
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

from torch import Tensor, nn

from fedavg import Plan, Task, run
from fedavg.errors import Diverged
from fedavg.tasks.mnist import cnn, image


def as_tensorflow_drew_them() -> nn.Module:
    module = cnn()
    for name, parameter in module.named_parameters():
        if name.endswith("weight"):
            nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
        else:
            nn.init.constant_(parameter, 0.0 if name == "0.bias" else 0.1)
    return module


def centred(x: Tensor) -> Tensor:
    return image(x) - 0.5


#: What is as in TensorFlow's example -> the module, and how pixels are scaled.
STARTS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "ours": (cnn, image),
    "pixels": (cnn, centred),
    "weights": (as_tensorflow_drew_them, image),
    "both": (as_tensorflow_drew_them, centred),
}


def rounds_to_99(task: Task, lr: float, rounds: int) -> float | None:
    plan = Plan(task=task, data="mnist", partition="iid", C=0, E=5, B=10, lr=lr, rounds=rounds, target=0.99, workers=1)
    try:
        return run(plan).summary.rounds_to_target
    except Diverged:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--rates", default="0.0464,0.1,0.215")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    for start, lr in product(options.starts.split(","), map(float, options.rates.split(","))):
        setting = {"start": start, "lr": lr, "seed": 0, "rounds": options.rounds}
        if any(row.items() >= setting.items() for row in rows):
            continue
        build, prepare = STARTS[start]
        task = Task("cnn", build, prepare=prepare, eval_batch=200)
        rows.append(setting | {"rounds_to_99": rounds_to_99(task, lr, options.rounds)})
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
