"""FedNova: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", §4

    client i:  tau_i steps of SGD;   sends d_i = Δ_i / |a_i|_1        (Δ_i = w^i - w_t)
    server:    tau_eff = Σ p_i |a_i|_1;   w_{t+1} = w_t + tau_eff Σ p_i d_i        (p_i = n_i / m_t)

    |a_i|_1 = tau_i for plain SGD; with momentum m, (tau_i - m (1 - m^tau_i) / (1 - m)) / (1 - m)

A client that takes more steps because it has more data no longer counts for more than its n_k: the objective stays
Σ p_i F_i. If all clients take the same number of steps it is FedAvg, up to rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

from torch import Tensor

from fedavg.algorithms.algorithm import PlanOptions
from fedavg.algorithms.fedavg import FedAvg
from fedavg.algorithms.settings import require_linear
from fedavg.optimizers import Optimizer
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client

#: A client's numbers are sent in float32, so an honest |a_i|_1 may exceed the server's own by this much.
ROUNDING: Final = 2.0**-23


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging: clients may take unequal numbers of steps (Wang et al. 2020).

    >>> str(FedNova())
    'fednova'
    """

    name = "fednova"
    metrics = ("train_loss", "tau")

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        update = super().client_update(client, weights, work)
        tau = client.optimizer.effective_steps(work.epochs * client.steps(work.batch))
        assert tau, "see `check`"
        return replace(update, vector=update.vector / tau, metrics={**update.metrics, "tau": tau})

    def metric_bounds(self, work: Work, examples: int, optimizer: Optimizer) -> Mapping[str, tuple[float, float]]:
        steps = work.epochs * max(1, ceil(examples / work.batch))
        most = optimizer.effective_steps(steps)
        assert most, "see `check`"
        return {"tau": (1, most * (1 + ROUNDING))}

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        tau_eff = total.metrics["tau"]  # the n_k-weighted mean over the cohort
        return replace(state, weights=(state.weights.double() + tau_eff * total.mean).float())

    def check(self, plan: PlanOptions) -> None:
        require_linear(plan, self.name, "it counts how much each gradient adds to the change")
