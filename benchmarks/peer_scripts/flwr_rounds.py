"""Flower's own FedAvg on a workload, simulated by Ray with two actors: `python flwr_rounds.py FILE`."""

import logging
import os
import sys
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
os.environ |= {"PYTHONPATH": str(Path(__file__).parent), "RAY_worker_niceness": "0"}  # of the actors

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import flwr_client
import torch_models
from work import Stopwatch, read

logging.getLogger("flwr").setLevel(logging.WARNING)
RAY = {"address": "local", "num_cpus": 2, "include_dashboard": False, "logging_level": 40, "log_to_driver": False}


class Timed(FedAvg):
    """Notes when rounds end, and stops at once if clients fail."""

    def start(self, *args, **kwargs):
        self.watch, self.losses = Stopwatch(), []
        return super().start(*args, **kwargs)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            print("clients failed:", [reply.error for reply in replies if reply.has_error()][:1], file=sys.stderr)
            os._exit(1)
        self.losses.append(metrics["train_loss"])
        return arrays, metrics

    def aggregate_evaluate(self, server_round, replies):
        """The last thing that is called in a round."""
        answer = super().aggregate_evaluate(server_round, replies)
        self.watch.round_ends()
        return answer


def main(path):
    given = read(path)
    module = torch_models.build(given.model)
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    clients = len(given.clients)
    strategy = Timed(fraction_train=len(given.cohorts[0]) / clients, fraction_evaluate=0.0, min_available_nodes=clients)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        config = ConfigRecord({"path": path})
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(trained), num_rounds=len(given.cohorts), train_config=config
        )

    run_simulation(
        server_app=server,
        client_app=flwr_client.app,
        num_supernodes=clients,
        backend_config={"init_args": RAY, "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
    )
    numbers = sum(p.numel() for p in trained.values())
    strategy.watch.answer(numbers, strategy.losses, f"Flower {flwr.__version__}, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main(sys.argv[1])
