"""The best number of local steps for a budget: Wang et al. 2019, "Adaptive Federated Learning in Resource Constrained
Edge Computing Systems", Algorithms 2 and 3 (§VI).

    client i:  ρ_i = |F_i(w_i) - F_i(w)| / |w_i - w|;   β_i = |∇F_i(w_i) - ∇F_i(w)| / |w_i - w|
               (w_i: where its last round ended, w: the average it is now sent);   sends ∇F_i(w) as well
               tau steps of SGD from w
    server:    w = Σ n_i w_i / n;   ρ, β: the means of ρ_i, β_i;   δ: how far the ∇F_i(w) are from their mean
               tau = argmin over 1 .. min(10 tau, most) of G(tau), and no more than the remaining budget allows

    G(tau) = a + √(a² + ρ h(tau) / (eta φ tau)) + ρ h(tau)    with  a = (c tau + b) / (2 eta φ R tau)
    h(tau) = (δ/β) ((eta β + 1)^tau - 1) - eta δ tau

A local step costs c (`step`), an aggregation b (`round`), in the unit of the budget R; the run ends when the budget
does not cover another round. φ is the paper's control parameter. Everyone takes part (C = 1). Two things differ from
the paper. Its δ is the mean distance; here it is the root mean square distance, which is never smaller and which the
server can compute from sums: Σ p_i |g_i - g|² = Σ p_i |g_i|² - |g|². And the model is the last one, not the one with
the least loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from fedavg.algorithms.algorithm import Algorithm, PlanOptions
from fedavg.algorithms.settings import require, require_plain_sgd
from fedavg.errors import PlanError
from fedavg.optimizers import Optimizer
from fedavg.types import State, Sum, Update, Work

if TYPE_CHECKING:
    from fedavg.client import Client

#: tau grows at most by this factor in a round (γ in the paper).
GROWTH: Final = 10
#: The largest slope or curvature that a client may report: beyond it, training has long failed.
STEEPEST: Final = 1e9


@dataclass(frozen=True)
class Estimates:
    """The slope and curvature of the loss, and how much the clients differ (§IV)."""

    rho: float
    beta: float
    delta: float


@dataclass(frozen=True)
class Adaptive(Algorithm):
    """Chooses the number of local steps that is best for a budget (Wang et al. 2019).

    >>> str(Adaptive(600))
    'adaptive:600'
    """

    name = "adaptive"
    metrics = ("train_loss", "rho", "beta", "square")
    keeps_state = True
    vectors_up = 2
    budget: float
    step: float = 1.0
    round: float = 10.0
    phi: float = 0.025
    most: int = 100

    def __post_init__(self) -> None:
        for setting in ("budget", "step", "phi"):
            require(self, setting, low=0, above=True)
        require(self, "round", low=0)
        require(self, "most", low=1)

    def initial(self, weights: Tensor) -> State:
        return State(weights, _slots(tau=1, steps=0, spent=0.0))

    def adjust(self, state: State, work: Work) -> Work:
        tau, steps, _ = _read(state)
        return replace(work, settings={**work.settings, "tau": tau, "steps": steps})

    def client_update(self, client: "Client", weights: Tensor, work: Work) -> Update:
        B, eta = work.batch, work.lr
        tau, done = int(work.settings["tau"]), int(work.settings["steps"])
        rho = beta = 0.0
        client.load(weights)
        gradient, loss = client.gradient()
        if "w" in client.state:
            distance = max(float((client.state["w"] - weights).norm()), 1e-10)
            client.load(client.state["w"])
            own_gradient, own_loss = client.gradient()
            rho = abs(own_loss - loss) / distance
            beta = float((own_gradient - gradient).norm()) / distance
            client.load(weights)
        for step in range(done + 1, done + tau + 1):
            client.step(step, B, eta)
        client.state["w"] = client.weights.clone()
        square = float(gradient.double().square().sum())
        metrics = {"train_loss": loss, "rho": rho, "beta": beta, "square": square}
        return Update(torch.cat([client.weights - weights, gradient]), weight=client.n, metrics=metrics)

    def metric_bounds(self, work: Work, examples: int, optimizer: Optimizer) -> Mapping[str, tuple[float, float]]:
        return dict.fromkeys(("rho", "beta", "square"), (0.0, STEEPEST))

    def server_update(self, state: State, total: Sum, work: Work) -> State:
        tau, steps, spent = _read(state)
        change, gradient = total.mean.chunk(2)
        spent += self.step * tau + self.round
        delta = sqrt(max(total.metrics["square"] - float(gradient.square().sum()), 0.0))
        estimates = Estimates(total.metrics["rho"], total.metrics["beta"], delta)
        slots = _slots(self._next(estimates, tau, work.lr, spent), steps + tau, spent)
        return State((state.weights.double() + change).float(), slots)

    def _next(self, estimates: Estimates, tau: int, eta: float, spent: float) -> int:
        """The tau of the next round; unchanged while ρ or β are unknown, as after the first round."""
        if estimates.rho > 0 and estimates.beta > 0:
            tau = min(range(1, min(GROWTH * tau, self.most) + 1), key=lambda t: self.bound(estimates, t, eta))
        affordable = int((self.budget - spent - self.round) / self.step)
        return max(min(tau, affordable), 1)

    def bound(self, estimates: Estimates, tau: int, eta: float) -> float:
        """G(tau): a bound on how far the loss is above the optimum when the budget is spent."""
        rho, beta, delta = estimates.rho, estimates.beta, estimates.delta
        try:
            h = max(delta / beta * ((eta * beta + 1) ** tau - 1) - eta * delta * tau, 0.0)
        except OverflowError:
            return inf
        a = (self.step * tau + self.round) / (2 * eta * self.phi * self.budget * tau)
        return a + sqrt(a * a + rho * h / (eta * self.phi * tau)) + rho * h

    def finished(self, state: State) -> bool:
        _, _, spent = _read(state)
        return spent + self.step + self.round > self.budget

    def check(self, plan: PlanOptions) -> None:
        if plan.C != 1 or plan.schedule("E").values != {1}:
            raise PlanError(
                f"algorithm adaptive: got C={plan.C:g}, E={plan.E}; expected C=1 and E=1 (all clients take part, and "
                "the algorithm itself decides their local steps)"
            )
        require_plain_sgd(plan, self.name, "its bound is on steps of plain SGD")
        if self.budget < self.step + self.round:
            raise PlanError(
                f"algorithm adaptive: the budget is {self.budget:g}; expected at least {self.step + self.round:g}, "
                "the cost of a round with one local step"
            )


def _slots(tau: int, steps: int, spent: float) -> dict[str, Tensor]:
    """The local steps of the next round, those of all rounds so far, and the budget spent."""
    return {
        "tau": torch.tensor([tau]),
        "steps": torch.tensor([steps]),
        "spent": torch.tensor([spent], dtype=torch.float64),
    }


def _read(state: State) -> tuple[int, int, float]:
    slots = state.slots
    return int(slots["tau"]), int(slots["steps"]), float(slots["spent"])
