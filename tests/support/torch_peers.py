"""PyTorch beside staticgrad: weights carried over, batches cut alike, the usual loop.

Importing this skips a test module where PyTorch is not installed.
"""

import numpy as np
import pytest

import staticgrad as sg

torch = pytest.importorskip("torch")
F = torch.nn.functional
QUIET = {"shuffle": False, "progress": False}
STEPS = {**QUIET, "record": "step"}


def twins(parameters):
    """PyTorch's copies of parameters, by name."""
    return {n: torch.tensor(p.value, requires_grad=True) for n, p in parameters.items()}


def carried(mine, peer):
    """PyTorch's module with our module's parameters."""
    state = {n: torch.tensor(p.value) for n, p in mine.parameters().items()}
    missing, unknown = peer.load_state_dict(state, strict=False)
    assert not unknown
    assert all("running" in n or "tracked" in n for n in missing)
    return peer


def cut(data, size, epochs=1):
    """The batches of `fit(shuffle=False)`, as tensors."""
    tensors = {name: torch.tensor(np.asarray(value)) for name, value in data.items()}
    samples = len(next(iter(tensors.values())))
    for _ in range(epochs):
        for first in range(0, samples, size):
            yield {n: t[first : first + size] for n, t in tensors.items()}


def descended(optimizer, loss_of, batches, after=lambda: None, clip=None, groups=1):
    """The losses of PyTorch's usual loop; `groups` batches make a step."""
    losses = []
    for number, batch in enumerate(batches, 1):
        if number % groups == 1 % groups:
            optimizer.zero_grad()
        loss = loss_of(**batch)
        (loss / groups).backward()
        losses.append(loss.item())
        if number % groups:
            continue
        if clip is not None:
            parameters = optimizer.param_groups[0]["params"]
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        after()
    return losses


def near(found, wanted, rtol=1e-4, atol=1e-6):
    """Equal within tolerances, arrays and tensors, one or several by name."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            near(found[name], value, rtol, atol)
        return
    found, wanted = (
        v.detach().numpy() if isinstance(v, torch.Tensor) else np.asarray(v)
        for v in (found, wanted)
    )
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def values(parameters):
    return {name: p.value for name, p in parameters.items()}


def first(data, samples):
    return {name: value[:samples] for name, value in data.items()}


def linear(weights, prefix, x):
    return F.linear(x, weights[f"{prefix}weight"], weights.get(f"{prefix}bias"))


def leaves(loss):
    nodes = sg.ir.graph.topological([loss])
    found = [t for n in nodes for t in n.outputs if isinstance(t, sg.Parameter)]
    return {p.name: p for p in found}
