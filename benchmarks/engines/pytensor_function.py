"""PyTensor: a compiled function over shared variables, its arguments trusted."""

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.engines.runner import Runner
from benchmarks.workloads.workload import Arrays, Workload

BETA1, BETA2, EPSILON = (np.float32(x) for x in (0.9, 0.999, 1e-8))


def warm_up(mode: str) -> None:
    """Its compiler's first use."""
    x = pytensor.shared(np.ones(2, np.float32))
    pytensor.function([], x + x, mode=mode)()


def prepare(workload: Workload, p: Arrays, d: Arrays, mode: str) -> Runner:
    """Parameters and data are shared variables: a call passes nothing."""
    leaves = {k: pytensor.shared(v, name=k, shape=v.shape) for k, v in p.items()}
    data = {k: pytensor.shared(v, name=k, shape=v.shape) for k, v in d.items()}
    out = workload.losses["pytensor"](pt, leaves, data)
    if workload.trains:
        return training(workload, out, leaves, p, mode)
    outputs = [out]
    if workload.kind == "gradient":
        outputs = pytensor.grad(out, list(leaves.values()))
    # Borrowed outputs: the function keeps and reuses their memory.
    borrowed = [pytensor.Out(o, borrow=True) for o in outputs]
    function = pytensor.function([], borrowed, mode=mode)
    function.trust_input = True
    return Runner(function, lambda: [np.asarray(o) for o in function()])


def training(workload: Workload, loss, leaves, p: Arrays, mode: str) -> Runner:
    """Updates of shared variables."""
    grads = pytensor.grad(loss, list(leaves.values()))
    pairs = list(zip(leaves.values(), grads, strict=True))
    states: list = []
    if workload.kind == "adam":
        updates = adam(pairs, np.float32(workload.rate), states)
    else:
        updates = [(leaf, leaf - np.float32(workload.rate) * g) for leaf, g in pairs]
    function = pytensor.function([], loss, updates=updates, mode=mode)
    function.trust_input = True

    def reset():
        for leaf, array in zip(leaves.values(), p.values(), strict=True):
            leaf.set_value(array)
        for state in states:
            state.set_value(np.zeros_like(state.get_value()))

    return Runner(function, lambda: [v.get_value() for v in leaves.values()], reset)


def adam(pairs, rate, states: list) -> list:
    """Updates as in Kingma and Ba; its shared variables are appended to `states`."""

    def state(array):
        states.append(pytensor.shared(array))
        return states[-1]

    count = state(np.zeros((), np.float32))
    now = count + np.float32(1)
    scale = rate / (1 - BETA1**now)
    root = pt.sqrt(1 - BETA2**now)
    updates = [(count, now)]
    for leaf, g in pairs:
        first, second = (state(np.zeros_like(leaf.get_value())) for _ in range(2))
        m = BETA1 * first + (1 - BETA1) * g
        v = BETA2 * second + (1 - BETA2) * g * g
        updates += [(first, m), (second, v)]
        updates.append((leaf, leaf - scale * m / (pt.sqrt(v) / root + EPSILON)))
    return updates
