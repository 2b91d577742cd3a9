"""FedJAX's own federated averaging on a workload: `python fedjax_rounds.py FILE`."""

import sys
from importlib.metadata import version

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from jax_models import BUILD, size
from work import Stopwatch, read

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # FedJAX calls it by the name that newer JAX has dropped


def main(path):
    given = read(path)
    parameters, apply = BUILD[given.model]()
    clients = [fedjax.ClientDataset({"x": images_last(x), "y": y.astype(np.int32)}) for x, y in given.clients]

    def loss(p, batch, rng):
        likelihoods = jax.nn.log_softmax(apply(p, batch["x"]))
        return -jnp.take_along_axis(likelihoods, batch["y"][..., None], -1).mean()

    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(given.lr, given.momentum or None),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=given.batch, num_epochs=given.epochs),
    )
    state, probe = algorithm.init(parameters), clients[0].all_examples()
    losses = [float(jax.jit(loss)(parameters, probe, None))]
    rounds = len(given.cohorts)
    keys = np.asarray(jax.random.split(jax.random.PRNGKey(0), rounds * len(given.cohorts[0]))).reshape(rounds, -1, 2)
    watch = Stopwatch()
    for cohort, own in zip(given.cohorts, keys, strict=True):
        asked = [(k, clients[k], key) for k, key in zip(cohort, own, strict=True)]
        state, _ = algorithm.apply(state, asked)
        jax.block_until_ready(state.params)
        watch.round_ends()
    losses.append(float(jax.jit(loss)(state.params, probe, None)))
    watch.answer(size(parameters), losses, f"FedJAX {version('fedjax')}, JAX {jax.__version__}")


def images_last(x):
    """Channels last, as JAX prefers its images."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x


if __name__ == "__main__":
    main(sys.argv[1])
