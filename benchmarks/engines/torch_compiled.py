"""PyTorch, torch.compile: the whole step as one graph, updates in place."""

import torch

from benchmarks.engines.runner import Runner
from benchmarks.engines.torch_eager import restore
from benchmarks.workloads.workload import Arrays, Workload

OPTIONS = {"fullgraph": True, "dynamic": False}
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def warm_up() -> None:
    """Its compiler's first use."""
    torch.compile(lambda x: x + 1)(torch.ones(2))


@torch.no_grad()
def prepare(workload: Workload, p: Arrays, d: Arrays, threads: int) -> Runner:
    """Functional gradients, which the compiler sees whole."""
    torch.set_num_threads(threads)
    leaves = {k: torch.tensor(v) for k, v in p.items()}
    data = {k: torch.from_numpy(v) for k, v in d.items()}

    def loss(leaves, data):
        return workload.losses["torch"](torch, leaves, data)

    if workload.trains:
        return training(workload, loss, leaves, data, p)
    function = loss if workload.kind == "value" else torch.func.grad(loss)
    compiled = torch.compile(function, **OPTIONS)
    kept = []

    @torch.no_grad()
    def step():
        kept[:] = [compiled(leaves, data)]

    def result():
        (out,) = kept
        tensors = out.values() if isinstance(out, dict) else [out]
        return [t.numpy() for t in tensors]

    return Runner(step, result)


def training(workload, loss, leaves, data, p) -> Runner:
    """Parameters and moments are updated in place."""
    gradient = torch.func.grad_and_value(loss)
    names = list(leaves)
    first = {k: torch.zeros_like(v) for k, v in leaves.items()}
    second = {k: torch.zeros_like(v) for k, v in leaves.items()}
    count = torch.zeros(())

    def sgd(leaves, data):
        grads, now = gradient(leaves, data)
        for name in names:
            leaves[name].sub_(workload.rate * grads[name])
        return now

    def adam(leaves, data, first, second, count):
        grads, now = gradient(leaves, data)
        count.add_(1)
        scale = workload.rate / (1 - BETA1**count)
        root = torch.sqrt(1 - BETA2**count)
        for name in names:
            m, v, g = first[name], second[name], grads[name]
            m.lerp_(g, 1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            leaves[name].sub_(scale * m / (v.sqrt() / root + EPSILON))
        return now

    args = (leaves, data)
    if workload.kind == "adam":
        args = (*args, first, second, count)
    compiled = torch.compile(adam if workload.kind == "adam" else sgd, **OPTIONS)

    @torch.no_grad()
    def step():
        return compiled(*args)

    def reset():
        restore(leaves.values(), p)
        for tensor in (*first.values(), *second.values(), count):
            tensor.zero_()

    return Runner(step, lambda: [t.numpy().copy() for t in leaves.values()], reset)
