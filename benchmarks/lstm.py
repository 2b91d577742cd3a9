"""Forward and backward of two LSTM layers (8 -> 256 -> 256, B=10, T=80): ours beside torch.nn.LSTM and the products.

Prints one JSON document. Each repetition runs all contestants once, in turn, on one thread; times are medians, and
only their ratios are meaningful. `FEDAVG_NATIVE=0` measures the loop that runs without a C compiler.

    python benchmarks/lstm.py [--repeats 20]
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from fedavg.engine.memory import keep_freed_memory
from fedavg.tasks.lstm import PeepholeLSTM
from fedavg.tasks.lstm_native import kernel

INPUTS, UNITS, BATCH, STEPS = 8, 256, 10, 80


def backward(output: Tensor) -> None:
    torch.autograd.backward(output, torch.ones_like(output))


def ours() -> Callable[[Tensor], None]:
    layers = nn.Sequential(PeepholeLSTM(INPUTS, UNITS), PeepholeLSTM(UNITS, UNITS))
    return lambda x: backward(layers(x))


def torchs() -> Callable[[Tensor], None]:
    layers = nn.LSTM(INPUTS, UNITS, num_layers=2, batch_first=True)
    return lambda x: backward(layers(x)[0])


def products() -> Callable[[Tensor], None]:
    """The matrix products of the same step and nothing else, by PyTorch."""
    rows, gates = BATCH * STEPS, 4 * UNITS
    h, z = torch.randn(rows, UNITS), torch.randn(rows, gates)
    recurrent = torch.randn(gates, UNITS)

    def layer(x: Tensor, weight: Tensor) -> None:
        torch.mm(x, weight)  # projection of the input
        for _ in range(STEPS - 1):
            torch.mm(h[:BATCH], recurrent.t())
            torch.mm(z[:BATCH], recurrent)
        torch.mm(z.t(), h)  # gradient of the recurrent weights
        torch.mm(x.t(), z)  # of the input weights
        torch.mm(z, weight.t())  # of the input

    weights = torch.randn(INPUTS, gates), torch.randn(UNITS, gates)
    below = torch.randn(rows, INPUTS)

    def run(_: Tensor) -> None:
        layer(below, weights[0])
        layer(h, weights[1])

    return run


def measure(repeats: int) -> dict[str, float]:
    """Milliseconds of each contestant."""
    contestants = {"ours_ms": ours(), "torch_lstm_ms": torchs(), "products_ms": products()}
    x = torch.randn(BATCH, STEPS, INPUTS, requires_grad=True)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(repeats + 3):
        for name, run in contestants.items():
            start = time.perf_counter()
            run(x)
            if repeat >= 3:  # the first ones compile and warm up
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a worker; it helps torch.nn.LSTM more than ours
    ms = measure(repeats)
    result: dict[str, float | str] = {"kernel": kernel(UNITS)} | {name: round(value, 2) for name, value in ms.items()}
    result["ratio"] = round(ms["ours_ms"] / ms["torch_lstm_ms"], 3)
    result["ratio_to_products"] = round(ms["ours_ms"] / ms["products_ms"], 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
