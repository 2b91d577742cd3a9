"""One measurement in a process of its own: `python -m fedavg.bench.child run|floor WORKLOAD ROUNDS WORKERS`."""

import json
import os
import sys
import time

from fedavg.bench.workloads import WORKLOADS


def main(what: str, workload: str, rounds: int, workers: int) -> dict[str, object]:
    if what == "floor":
        os.environ["FEDAVG_NATIVE"] = "0"  # the products of an LSTM can be seen only in the loop that runs everywhere
        from fedavg.bench.floor import floor_seconds_per_round

        return {"seconds": floor_seconds_per_round(WORKLOADS[workload](rounds, workers))}
    from fedavg.server import Round, train

    ends, seconds = [], []
    for event in train(WORKLOADS[workload](rounds, workers)):
        if isinstance(event, Round):
            ends.append(time.time())
            seconds.append(event.seconds)
    return {"first_end": ends[0], "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
