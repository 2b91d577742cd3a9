"""Time and bytes of every codec for one update of 1,663,370 numbers (the MNIST CNN), on one core.

Times are medians of the CPU time of one thread, which other work on the machine disturbs least. Writes
docs/results/codecs.json and prints it; exits with 1 if encoding and decoding together take longer than the limit.

    python benchmarks/codecs.py [--repeats 15]
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from statistics import median
from time import thread_time

import torch
from torch import Tensor

from fedavg import Plan, seeds
from fedavg.codecs import Codec, make_codec
from fedavg.engine.memory import keep_freed_memory
from fedavg.engine.model import Model
from fedavg.setup import resolve_task

OUT = Path(__file__).parent.parent / "docs/results/codecs.json"
SPECS = (
    "float32", "float16", "bfloat16", "quantise:8", "quantise:4", "quantise:2", "quantise:1", "mask:0.05", "lowrank:4",
    "topk:0.01", "stc:0.01", "stc:0.0025", "entropy:float32", "entropy:quantise:4", "entropy:stc:0.01",
)  # fmt: skip


def limit_ms(spec: str) -> int:
    return 150 if spec.startswith(("stc", "entropy")) else 50


def like_an_update(size: int) -> Tensor:
    """Numbers of very different magnitudes, as in the layers of a model."""
    rng = seeds.rng(0, seeds.NONE, seeds.NONE, "benchmark")
    return torch.from_numpy(rng.standard_normal(size, "float32") * rng.random(size, "float32") ** 4)


def measure(codec: Codec, vector: Tensor, repeats: int) -> dict[str, float]:
    encoding, decoding = [], []
    for repeat in range(repeats + 2):
        rng = seeds.rng(0, repeat, seeds.NONE, "benchmark")
        start = thread_time()
        frame = codec.encode(vector, rng)
        middle = thread_time()
        codec.decode(frame, len(vector))
        encoding.append(middle - start)
        decoding.append(thread_time() - middle)
    encode_ms, decode_ms = (1000 * median(times[2:]) for times in (encoding, decoding))  # the first two are warm-up
    return {
        "encode_ms": round(encode_ms, 2),
        "decode_ms": round(decode_ms, 2),
        "total_ms": round(encode_ms + decode_ms, 2),
        "bytes": len(frame),
        "bits_per_number": round(8 * len(frame) / len(vector), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a worker
    model = Model(resolve_task(Plan(task="mnist-cnn")), 0)
    vector = like_an_update(len(model.vector))
    shapes = [tuple(slot.shape) for slot in model.slots]
    rows = {}
    for spec in SPECS:
        rows[spec] = measure(make_codec(spec).bind(lambda: shapes), vector, repeats) | {"limit_ms": limit_ms(spec)}
        print(spec, json.dumps(rows[spec]), flush=True)
    result = {"date": f"{date.today()}", "numbers": len(vector), "repeats": repeats, "codecs": rows}
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(row["total_ms"] > row["limit_ms"] for row in rows.values()))


if __name__ == "__main__":
    main()
