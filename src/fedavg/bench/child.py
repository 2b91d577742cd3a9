"""One measurement in a process of its own: `python -m fedavg.bench.child run|floor|plain W1 ROUNDS WORKERS METHOD`."""

import json
import os
import sys
import time
from collections.abc import Iterator

from fedavg.bench.process_tree import Timed, cpu_seconds
from fedavg.bench.workloads import plan_of
from fedavg.plan import Plan


def main(what: str, workload: str, rounds: int, workers: int, start_method: str = "auto") -> dict[str, object]:
    plan = plan_of(workload, rounds, workers, start_method)
    if what == "floor":
        os.environ["FEDAVG_NATIVE"] = "0"  # the products of an LSTM can be seen only in the loop that runs everywhere
        from fedavg.bench.floor import floor_seconds_per_round

        return {"seconds": floor_seconds_per_round(plan)}
    from fedavg.bench.reference import plain_rounds

    timed, ends = [], []
    for round in plain_rounds(plan) if what == "plain" else our_rounds(plan):
        timed.append(round)
        ends.append(time.time())
    return {
        "first_end": ends[0],
        "seconds": [round.seconds for round in timed],
        "cpu_seconds": [round.cpu_seconds for round in timed],
        "examples": [round.examples for round in timed],
    }


def our_rounds(plan: Plan) -> Iterator[Timed]:
    from fedavg.server import Round, train

    before = cpu_seconds()
    for event in train(plan):
        now = cpu_seconds()
        if isinstance(event, Round):
            yield Timed(event.seconds, now - before, event.examples)
        before = now


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])))
