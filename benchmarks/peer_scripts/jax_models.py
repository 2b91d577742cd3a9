"""The workloads' models in JAX: `build(name)` gives initial parameters and `apply(parameters, x)`, logits last."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CHARACTERS, VOCABULARY, LENGTH = 258, 100, 32
RNG = np.random.default_rng(0)


def uniform(fan, *shape):
    bound = 1 / np.sqrt(fan)
    return jnp.asarray(RNG.uniform(-bound, bound, shape).astype(np.float32))


def normal(*shape):
    return jnp.asarray(RNG.standard_normal(shape, np.float32))


def linear(inputs, outputs):
    return {"w": uniform(inputs, inputs, outputs), "b": uniform(inputs, outputs)}


def dense(p, x):
    return x @ p["w"] + p["b"]


def conv(p, x, stride=1):
    return lax.conv_general_dilated(x, p, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def kernel(size, inputs, outputs):
    return uniform(size * size * inputs, size, size, inputs, outputs)


def scale(width):
    return {"w": jnp.ones(width), "b": jnp.zeros(width)}


def normalised(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def group_norm(p, x, groups=4):
    b, h, w, c = x.shape
    grouped = x.reshape(b, h * w, groups, c // groups)
    centred = grouped - grouped.mean((1, 3), keepdims=True)
    scaled = centred * lax.rsqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    return scaled.reshape(x.shape) * p["w"] + p["b"]


def two_nn():
    layers = [linear(784, 200), linear(200, 200), linear(200, 10)]

    def apply(p, x):
        return dense(p[2], jax.nn.relu(dense(p[1], jax.nn.relu(dense(p[0], x)))))

    return layers, apply


def pooled(x):
    """By 2 x 2: a reshape and a maximum, whose gradient is much faster on a CPU than that of `reduce_window`."""
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))


def cnn():
    parameters = {
        "kernels": [kernel(5, 1, 32), kernel(5, 32, 64)],
        "biases": [uniform(25, 32), uniform(800, 64)],
        "layers": [linear(7 * 7 * 64, 512), linear(512, 10)],
    }

    def apply(p, x):
        for weights, bias in zip(p["kernels"], p["biases"], strict=True):
            x = pooled(jax.nn.relu(conv(weights, x) + bias))
        return dense(p["layers"][1], jax.nn.relu(dense(p["layers"][0], x.reshape(len(x), -1))))

    return parameters, apply


def char_lstm(units=256):
    layers = [{"x": linear(n, 4 * units), "h": uniform(units, units, 4 * units)} for n in (8, units)]
    parameters = {"embedding": normal(CHARACTERS, 8), "layers": layers, "decoder": linear(units, CHARACTERS)}

    def step(weights, state, gates):
        h, c = state
        i, f, g, o = jnp.split(gates + h @ weights, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def apply(p, x):
        h = p["embedding"][x].transpose(1, 0, 2)
        zero = jnp.zeros((len(x), units))
        for layer in p["layers"]:
            _, h = lax.scan(partial(step, layer["h"]), (zero, zero), dense(layer["x"], h))
        return dense(p["decoder"], h).transpose(1, 0, 2)

    return parameters, apply


def attention(three, out, x, heads):
    """Causal; `three` are queries, keys and values side by side."""
    b, t, width = x.shape
    q, k, v = three.reshape(b, t, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(width // heads)
    weights = jax.nn.softmax(jnp.where(np.tri(t, dtype=bool), scores, -jnp.inf))
    return out((weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))


def encoder(width=64, heads=4, layers=2, hidden=128):
    def layer():
        return {
            "three": linear(width, 3 * width), "out": linear(width, width), "norms": [scale(width), scale(width)],
            "hidden": linear(width, hidden), "back": linear(hidden, width),
        }  # fmt: skip

    parameters = {
        "tokens": normal(VOCABULARY, width), "places": jnp.zeros((LENGTH, width)),
        "layers": [layer() for _ in range(layers)], "logits": linear(width, VOCABULARY),
    }  # fmt: skip

    def apply(p, x):
        x = p["tokens"][x] + p["places"]
        for q in p["layers"]:
            mixed = attention(dense(q["three"], x), lambda h, q=q: dense(q["out"], h), x, heads)
            x = normalised(q["norms"][0], x + mixed)
            x = normalised(q["norms"][1], x + dense(q["back"], jax.nn.relu(dense(q["hidden"], x))))
        return dense(p["logits"], x)

    return parameters, apply


def resnet():
    shapes = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]

    def block(inputs, outputs, stride):
        shortcut = {} if stride == 1 else {"shortcut": kernel(1, inputs, outputs)}
        kernels = {"first": kernel(3, inputs, outputs), "second": kernel(3, outputs, outputs)}
        return {**kernels, "norms": [scale(outputs), scale(outputs)], **shortcut}

    parameters = {
        "first": kernel(3, 3, 16), "norm": scale(16), "blocks": [block(*shape) for shape in shapes],
        "logits": linear(64, 10),
    }  # fmt: skip

    def apply(p, x):
        x = jax.nn.relu(group_norm(p["norm"], conv(p["first"], x)))
        for q, (_, _, stride) in zip(p["blocks"], shapes, strict=True):
            y = jax.nn.relu(group_norm(q["norms"][0], conv(q["first"], x, stride)))
            beside = conv(q["shortcut"], x, stride) if stride > 1 else x
            x = jax.nn.relu(group_norm(q["norms"][1], conv(q["second"], y)) + beside)
        return dense(p["logits"], x.mean((1, 2)))

    return parameters, apply


def adapted(width=256, heads=8, layers=6, rank=8):
    """Only the adapters are parameters; everything else is a constant of `apply`."""

    def frozen():
        return {
            "norms": [scale(width), scale(width)], "three": linear(width, 3 * width), "out": linear(width, width),
            "hidden": linear(width, 4 * width), "back": linear(4 * width, width),
        }  # fmt: skip

    def adapter(outputs):
        return {"down": uniform(width, width, rank), "up": jnp.zeros((rank, outputs))}

    blocks = [frozen() for _ in range(layers)]
    tokens, places = normal(VOCABULARY, width), normal(LENGTH, width) / 50
    norm, logits = scale(width), linear(width, VOCABULARY)
    parameters = [{"three": adapter(3 * width), "out": adapter(width)} for _ in range(layers)]

    def both(layer, added, x):
        return dense(layer, x) + x @ added["down"] @ added["up"]

    def apply(p, x):
        x = tokens[x] + places
        for q, added in zip(blocks, p, strict=True):
            h = normalised(q["norms"][0], x)
            three = both(q["three"], added["three"], h)
            x = x + attention(three, lambda m, q=q, a=added: both(q["out"], a["out"], m), h, heads)
            hidden = jax.nn.gelu(dense(q["hidden"], normalised(q["norms"][1], x)), approximate=False)
            x = x + dense(q["back"], hidden)
        return dense(logits, normalised(norm, x))

    return parameters, apply


BUILD = {
    "mnist-2nn": two_nn, "mnist-cnn": cnn, "shakespeare-lstm": char_lstm, "encoder": encoder, "resnet": resnet,
    "adapted": adapted,
}  # fmt: skip


def size(parameters):
    return sum(leaf.size for leaf in jax.tree_util.tree_leaves(parameters))
