"""JAX: a jitted step whose buffers are donated, and fori_loop over it."""

import jax
import numpy as np

from benchmarks.engines.runner import Runner
from benchmarks.workloads.workload import Arrays, Workload

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def warm_up() -> None:
    """Its compiler's first use."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(np.ones(2, np.float32)))


def prepare(workload: Workload, p: Arrays, d: Arrays, threads: int) -> Runner:
    """Threads follow the cores of the process."""
    data = {k: jax.device_put(v) for k, v in d.items()}

    def loss(leaves, data):
        return workload.losses["jax"](jax, leaves, data)

    if workload.trains:
        return training(workload, loss, data, p)
    leaves = {k: jax.device_put(v) for k, v in p.items()}
    function = jax.jit(loss if workload.kind == "value" else jax.grad(loss))
    kept = []

    def step():
        kept[:] = [function(leaves, data)]

    def wait():
        jax.block_until_ready(kept)

    def result():
        return [np.asarray(leaf) for leaf in jax.tree.leaves(kept)]

    # A loop would have its body hoisted: nothing in it changes.
    return Runner(step, result, wait=wait)


def training(workload: Workload, loss, data, p: Arrays) -> Runner:
    """The loss is carried, so that it is computed in each step of the loop too."""
    value_and_grad = jax.value_and_grad(loss)
    update = adam if workload.kind == "adam" else sgd

    def one(carry, data):
        (leaves, moments), _ = carry
        now, grads = value_and_grad(leaves, data)
        return update(leaves, moments, grads, workload.rate), now

    def many(carry, data, count):
        return jax.lax.fori_loop(0, count, lambda _, c: one(c, data), carry)

    step_jitted = jax.jit(one, donate_argnums=0)
    many_jitted = jax.jit(many, donate_argnums=0)
    state = []

    def reset():
        leaves = jax.tree.map(jax.numpy.array, p)
        state[:] = [((leaves, moments(workload, p)), jax.numpy.float32(0))]

    def step():
        state[0] = step_jitted(state[0], data)

    def loop(count):
        state[0] = many_jitted(state[0], data, count)
        jax.block_until_ready(state)

    def result():
        (leaves, _), _ = state[0]
        return [np.array(leaves[k]) for k in p]

    reset()
    return Runner(step, result, reset, loop, lambda: jax.block_until_ready(state))


def moments(workload: Workload, p: Arrays):
    """First and second moments and the number of steps; nothing for SGD."""
    if workload.kind == "sgd":
        return ()
    zeros = (jax.tree.map(jax.numpy.zeros_like, p) for _ in range(2))
    return (*zeros, jax.numpy.float32(0))


def sgd(leaves, moments, grads, rate):
    """``p - rate g``."""
    return jax.tree.map(lambda p, g: p - rate * g, leaves, grads), moments


def adam(leaves, moments, grads, rate):
    """As in Kingma and Ba."""
    first, second, count = moments
    count = count + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, grads)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, grads)
    scale = rate / (1 - BETA1**count)
    root = jax.numpy.sqrt(1 - BETA2**count)

    def moved(p, m, v):
        return p - scale * m / (jax.numpy.sqrt(v) / root + EPSILON)

    return jax.tree.map(moved, leaves, first, second), (first, second, count)
