"""Features on a GPU beside single ops and training: one small graph for each.

Each function of `GRAPHS` makes (outputs, inputs, arrays) of what the check of the cuda
target compares with the reference target, launched and replayed. `PARTS` check what is
no graph alone; each raises where something is wrong.
"""

import importlib

import numba
import numpy as np

import staticgrad as sg
from staticgrad.compiler.cuda.device import using

RNG = np.random.default_rng(0)


def values(*shape):
    return RNG.normal(size=shape).astype("float32")


@numba.njit
def softened(x, w):
    total = w
    for k in range(3):
        total += np.tanh(x) ** k
    return total


@numba.njit
def softened_backward(g, y, x, w):
    t = np.tanh(x)
    return g * (1 - t * t) * (1 + 2 * t), g


@numba.njit
def running(x):
    return np.cumsum(x)


def own_function():
    """A function of numbers in a kernel, with its derivative."""
    x, w = sg.input("x", ("n", 3)), sg.input("w", (3,))
    soft = sg.custom_op(
        "soft", kind="scalar", forward=softened, backward=softened_backward
    )
    loss = sg.sum(soft(x, w) * 2)
    return [loss, *sg.grad(loss, [x, w])], [x, w], [values(9, 3), values(3)]


def on_the_host():
    """A function of arrays and one of Python between kernels."""
    x = sg.input("x", (8,))
    y = sg.custom_op("running", kind="array", forward=running)(sg.exp(x))
    return [sg.pure_callback(np.sort, (8,), "float32", y) * 2], [x], [values(8)]


def conditional_nodes():
    """A branch in a loop that its condition ends, both decided inside of the graph."""
    x = sg.input("x", (4,))

    def step(c):
        above = sg.sum(c) > 0
        return sg.cond(above, lambda v: v * 0.5, lambda v: v * 0.25 + 0.01, c)

    y = sg.while_loop(lambda c: sg.max(abs(c)) > 0.1, step, x, max_steps=60)
    index = sg.sum(x > 0) % 3
    return [y, sg.switch(index, [sg.sin, sg.cos, sg.exp], x)], [x], [values(4)]


def branches():
    """A branch, a loop that its condition ends, and their gradients."""
    x = sg.input("x", (4,))
    y = sg.cond(sg.sum(x) > 0, sg.sin, lambda v: v * v, x)
    z, steps = sg.while_loop(
        lambda c: sg.sum(c[0] * c[0]) > 0.1,
        lambda c: (sg.sin(c[0]) * 0.7, c[1] + 1),
        (y, 0),
        max_steps=60,
        checkpoints=3,
    )
    return [y, z, steps, sg.grad(sg.sum(z * z), x)], [x], [values(4)]


def from_snapshots():
    """A scan that goes back from two kept carries, in one graph."""
    x = sg.input("x", (7, 3))
    last, _ = sg.scan(lambda h, v: (sg.sin(h * v + 0.5), None), x[0], x, checkpoints=2)
    return [last, sg.grad(sg.sum(last), x)], [x], [values(7, 3)]


def turned():
    """A copy that turns axes, by tiles."""
    x = sg.input("x", ("n", 33, 70))
    return [sg.transpose(x, (0, 2, 1))], [x], [values(3, 33, 70)]


def convolution():
    """A convolution, pooled, and its gradients."""
    x, w = sg.input("x", ("n", 3, 12, 12)), sg.input("w", (5, 3, 3, 3))
    y = sg.nn.max_pool2d(sg.nn.conv2d(x, w, padding=1), 2)
    loss = sg.sum(y * y)
    given = [values(2, 3, 12, 12), values(5, 3, 3, 3)]
    return [y, *sg.grad(loss, [x, w])], [x, w], given


GRAPHS = [
    own_function, on_the_host, conditional_nodes, branches, from_snapshots, turned,
    convolution,
]  # fmt: skip


def budget(device):
    """A step in half of its memory: the same bits."""
    found = []
    for share in (None, 2):
        with sg.Graph(seed=1), using(device):
            x = sg.input("x", (16, 8))
            layers = [(sg.nn.Linear(8, 8), sg.nn.Tanh()) for _ in range(10)]
            model = sg.nn.Sequential(*(part for pair in layers for part in pair))
            loss = sg.mean(model(x) ** 2)
            parameters = model.parameters()
            pairs = sg.optim.SGD(0.05).updates(sg.grad(loss, parameters), parameters)
            most = None if share is None else found[0][1] // share
            f = sg.compile(
                loss, updates=pairs, mode="train", target="cuda", memory_budget=most
            )
        data = np.linspace(-1, 1, 128, dtype="float32").reshape(16, 8)
        losses = [f(data).tobytes() for _ in range(3)]
        found.append((losses, f.memory.arena_bytes))
    (plain, arena), (lean, less) = found
    assert plain == lean
    assert 2 * less <= arena
    return {"arena bytes": arena, "within": less}


def taps(device):
    """Return the values that a callback and a ring have seen in three calls."""
    x = sg.input("x", (4,))
    h = sg.exp(x)
    with using(device):
        f = sg.compile(sg.sum(h), target="cuda")
    seen = []
    f.tap(h, seen.append)
    kept = f.tap(h, record=2)
    given = values(3, 4)
    for row in given:
        f(row)
    np.testing.assert_allclose(seen, np.exp(given), rtol=1e-5)
    np.testing.assert_allclose(kept.values, np.exp(given[1:]), rtol=1e-5)
    return {"values": len(seen)}


def device_arrays(device):
    """Outputs that stay on the device go in again; those of torch, where there are."""
    x = sg.input("x", ("n",))
    with using(device):
        f = sg.compile(x * 2, inputs=[x], target="cuda")
    given = values(5)
    np.testing.assert_array_equal(f(f.on_device(given)), given * 4)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "torch is not installed"
    if device.stream_number is None or not torch.cuda.is_available():
        return "torch has no GPU"
    tensor = torch.tensor(given, device="cuda")
    np.testing.assert_array_equal(f(tensor), given * 2)
    for take in (torch.from_dlpack, lambda y: torch.as_tensor(y, device="cuda")):
        np.testing.assert_array_equal(take(f.on_device(tensor)).cpu(), given * 2)
    return "torch too"


PARTS = [budget, taps, device_arrays]
