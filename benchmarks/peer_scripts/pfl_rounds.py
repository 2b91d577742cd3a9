"""pfl-research's own federated averaging on a workload: `torchrun --nproc_per_node=2 pfl_rounds.py FILE`."""

import os
import sys
from functools import partial
from importlib.metadata import version
from itertools import chain, cycle

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

import torch_models
from work import Stopwatch, read

RANK = int(os.environ.get("RANK", "0"))


class EveryRound(TrainingProcessCallback):
    """Notes when rounds end."""

    def on_train_begin(self, *, model):
        self.watch, self.losses, self.seen = Stopwatch(), [], []
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.losses.append(float(torch.stack(self.seen).mean()))
        self.seen.clear()
        self.watch.round_ends()
        return False, Metrics()


def main(path):
    torch.set_num_threads(1)
    given = read(path)
    module, rounds = torch_models.build(given.model), EveryRound()

    def loss(self, x, y):
        found = torch_models.loss(self, x, y)
        rounds.seen.append(found.detach())
        return found

    type(module).loss = loss
    type(module).metrics = lambda self, x, y: {"loss": Weighted(0.0, len(y))}
    clients = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in given.clients]

    def examples(k):
        x, y = clients[k]
        order = torch.randperm(len(y))
        return Dataset((x[order], y[order]), user_id=str(k))

    # Every process draws the whole cohort and trains its part. Weights let pfl spread clients of unlike sizes evenly.
    drawn = cycle(chain.from_iterable(given.cohorts))
    sizes = {k: len(y) for k, (_, y) in enumerate(given.clients)}
    weights = sizes if len(set(sizes.values())) > 1 else None
    data = FederatedDataset(examples, partial(next, drawn), weights)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(given.cohorts),
            evaluation_frequency=1 + len(given.cohorts),
            train_cohort_size=len(given.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            module,
            local_optimizer_create=partial(torch.optim.SGD, momentum=given.momentum),
            central_optimizer=torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=given.epochs, local_learning_rate=given.lr, local_batch_size=given.batch
        ),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )
    if RANK == 0:
        versions = f"pfl {version('pfl')}, PyTorch {torch.__version__}"
        rounds.watch.answer(torch_models.trained(module), rounds.losses, versions)


if __name__ == "__main__":
    main(sys.argv[1])
