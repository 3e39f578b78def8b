"""PyTorch, eager: autograd and the fastest form of the optimiser."""

import torch

from benchmarks.engines.runner import Runner
from benchmarks.workloads.workload import Arrays, Workload


def warm_up() -> None:
    """Start its threads and its autograd engine."""
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()


def prepare(workload: Workload, p: Arrays, d: Arrays, threads: int) -> Runner:
    """Tensors of its own."""
    torch.set_num_threads(threads)
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in p.items()}
    data = {k: torch.from_numpy(v) for k, v in d.items()}

    def loss() -> torch.Tensor:
        return workload.losses["torch"](torch, leaves, data)

    if workload.kind == "value":
        return value(workload, leaves, data)
    if workload.kind == "gradient":
        return gradient(loss, leaves)
    return training(workload, loss, leaves, p)


def value(workload, leaves, data) -> Runner:
    """No graph is recorded."""
    kept = []

    @torch.inference_mode()
    def step():
        kept[:] = [workload.losses["torch"](torch, leaves, data)]

    return Runner(step, lambda: [t.numpy() for t in kept])


def gradient(loss, leaves) -> Runner:
    """torch.autograd.grad leaves nothing to be zeroed."""
    wrt = list(leaves.values())
    kept = []

    def step():
        kept[:] = torch.autograd.grad(loss(), wrt)

    return Runner(step, lambda: [t.numpy() for t in kept])


def training(workload, loss, leaves, p) -> Runner:
    """SGD is one foreach call, which is what torch.optim.SGD does at the least."""
    wrt = list(leaves.values())
    optimizer = torch.optim.Adam(wrt, lr=workload.rate, fused=True)

    def sgd():
        now = loss()
        grads = torch.autograd.grad(now, wrt)
        with torch.no_grad():
            torch._foreach_add_(wrt, grads, alpha=-workload.rate)
        return now

    def adam():
        optimizer.zero_grad(set_to_none=True)
        now = loss()
        now.backward()
        optimizer.step()
        return now

    def reset():
        restore(wrt, p)
        optimizer.state.clear()

    step = adam if workload.kind == "adam" else sgd
    return Runner(step, lambda: [t.detach().numpy().copy() for t in wrt], reset)


def restore(tensors, p: Arrays) -> None:
    """Put first values back."""
    with torch.no_grad():
        for tensor, array in zip(tensors, p.values(), strict=True):
            tensor.copy_(torch.from_numpy(array))
