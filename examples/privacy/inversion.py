"""What an eavesdropping server could learn: a client's image from its gradient, and how protection defeats that.

Clients hold one MNIST image each and send the gradient of the 2NN (FedSGD, B = 1). The first layer computes W x + b, so
∂l/∂W = (∂l/∂b) xᵀ: every row of the weight gradient, divided by its entry of the bias gradient, is the image itself. No
optimisation is needed. The attack is given the best it can have: of the guesses of all 200 rows and of their
least-squares combination the one that is closest to the original counts, as judged with the original in hand.

usage: python examples/privacy/inversion.py [--out inversion.png] [--json FILE] [--cohort 100]
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedavg import ArrayData, Examples, Plan, load
from fedavg.client_path import ClientPath
from fedavg.engine.model import Model
from fedavg.setup import Setup, population_of, resolve
from fedavg.sums import ExactSum, to_float

#: What the server sees of client 0, by name: the stages of the plan.
VIEWS: dict[str, tuple[str, ...]] = {
    "no protection": (),
    "clipped only": ("clip:0.5", "weigh:equal"),
    "clipped, local noise (epsilon 8)": ("weigh:equal", "localdp:8:0.5"),
}
SUM = "sum of the cohort"
#: What anyone knows of an MNIST image without any attack: the yardstick for the sums.
AVERAGE = "no attack: the mean of the others"
NOISED_SUM = "sum of the cohort, clipped and noised (z = 1)"


def one_image_each(count: int) -> ArrayData:
    """So many clients with one training image each."""
    mnist = load("mnist", "iid")
    examples = [mnist.client(k) for k in range(len(mnist))]
    x, y = torch.cat([e.x for e in examples])[:count], torch.cat([e.y for e in examples])[:count]
    return ArrayData("one image each", x, y, [np.array([k]) for k in range(count)], Examples(x[:2], y[:2]))


def setup_of(data: ArrayData, stages: tuple[str, ...]) -> Setup:
    plan = Plan(task="mnist-2nn", data=data, algorithm="fedsgd", E=1, B="inf", C=1.0, stages=stages)
    return resolve(plan, population_of(data), None)


def seen_by_the_server(setup: Setup, data: ArrayData, clients: list[int]) -> Tensor:
    """The sum over clients that the real client path sends and the real server side adds up and passes on."""
    torch.set_num_threads(1)  # for products this small, threads only wait for each other
    trainer = setup.new_trainer(data.client(0))
    weights = trainer.weights.clone()
    ring = ExactSum(torch.zeros(len(weights), dtype=torch.int64))
    for k in clients:
        work = setup.plan.work(1)
        path = ClientPath(setup, trainer, k, data.client(k), work, None)
        with path.training() as client:
            update = setup.algorithm.client_update(client, weights, work)
        message = path.message(update)
        ring.add(setup.codec.decode(message.frame, len(weights)), message.weight)
    return to_float(torch.from_numpy(ring._ring))


def guesses(gradient: Tensor, model: Model) -> Tensor:
    """Images, shape (201, 784), that a gradient of the 2NN gives away."""
    weight, bias = (next(s for s in model.slots if s.name == name) for name in ("0.weight", "0.bias"))
    dW, db = weight.view(gradient).double(), bias.view(gradient).double()
    used = db.abs() > 1e-12
    rows = dW[used] / db[used, None]
    together = (db @ dW) / (db @ db).clamp_min(1e-30)
    return torch.cat([rows, together[None]])


def best_guess(images: Tensor, original: Tensor) -> tuple[float, Tensor]:
    """The correlation of the closest guess with the original, and that guess."""
    a = images - images.mean(1, keepdim=True)
    b = original - original.mean()
    scores = torch.nan_to_num((a @ b) / (a.norm(dim=1) * b.norm()))
    place = int(scores.argmax())
    return float(scores[place]), images[place]


def attack(cohort: int = 100) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Similarity and reconstruction of client 0's image for everything that a server might see."""
    data = one_image_each(cohort)
    original = data.client(0).x[0].double().flatten() / 255
    plain = setup_of(data, ())
    model = Model(plain.task, plain.plan.seed)
    everyone = list(range(cohort))
    protected = setup_of(data, ("clip:0.5", "weigh:equal", "noise:1.0:where=clients"))
    views = {name: seen_by_the_server(setup_of(data, stages), data, [0]) for name, stages in VIEWS.items()}
    views[SUM] = seen_by_the_server(plain, data, everyone)
    views[NOISED_SUM] = seen_by_the_server(protected, data, everyone)
    images = {name: guesses(gradient, model) for name, gradient in views.items()}
    images[AVERAGE] = torch.cat([data.client(k).x for k in everyone[1:]]).double().flatten(1).mean(0, keepdim=True)
    found = {name: best_guess(candidates, original) for name, candidates in images.items()}
    scores = {name: score for name, (score, _) in found.items()}
    return scores, {"original": original, **{name: image for name, (_, image) in found.items()}}


def draw(scores: dict[str, float], images: dict[str, Tensor], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.3 * len(images), 3.4), layout="constrained")
    for axes, (name, image) in zip(figure.subplots(1, len(images)), images.items(), strict=True):
        axes.imshow(image.reshape(28, 28).numpy(), cmap="gray")
        axes.set_axis_off()
        title = name.replace(", ", ",\n").replace(" (", "\n(")
        axes.set_title(title + (f"\ncorrelation {scores[name]:.2f}" if name in scores else ""), fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("inversion.png"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cohort", type=int, default=100)
    options = parser.parse_args()
    scores, images = attack(options.cohort)
    for name, score in scores.items():
        print(f"{score:7.4f}  {name}")
    draw(scores, images, options.out)
    if options.json:
        content = {"cohort": options.cohort, "correlation": {name: round(score, 4) for name, score in scores.items()}}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
