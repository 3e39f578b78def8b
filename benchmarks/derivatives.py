"""Whole derivatives: what they cost beside dense ones of JAX, and beside a gradient.

``python -m benchmarks derivatives``. Products of a sparse Hessian and the nodes of a
gradient are counted; the rest is measured, peers in the same process.
"""

from collections.abc import Callable

import numpy as np

import staticgrad as sg
from benchmarks import machine, peers
from benchmarks.clock import alternating
from benchmarks.tables import duration, ratio, table
from staticgrad.ir.graph import topological

DIAGONALS = 5
MANY, FEW = 10_000, 1_000
INPUTS, OUTPUTS = 20, 1_000
LAYERS = 100
ROUNDS = 20  # short ones: a long one would be hit by what else the machine does


def main(options) -> dict:
    """Measure and print."""
    counted = counts(options.scale)
    header = ("counted", "found", "goal", "")
    print(table(header, [_cells(row) for row in counted]))
    products = [
        row
        for threads in options.threads
        if threads <= len(machine.cores())
        for row in products_with_vectors(threads, options.seconds, options.scale)
    ]
    print()
    header = ("product with a Hessian", "gradient", "product", "ratio", "goal 4")
    print(table(header, [_product_cells(row) for row in products]))
    machine.pin(1)
    whole = matrices(options.seconds, options.scale, peers.jax())
    print()
    header = ("one thread", "ours", "ours dense", "jax", "jax / ours", "goal", "")
    print(table(header, [_matrix_cells(row) for row in whole]))
    return {"counts": counted, "products": products, "matrices": whole}


def banded(m, x):
    """A function whose Hessian has five diagonals; `m` is a library like NumPy."""
    return m.sum(m.sin(x[2:] * x[:-2]) + x[1:-1] ** 2 * x[:-2])


def wide(m, x, w):
    """Map few numbers to many."""
    return m.tanh(w @ x) * m.sin(x).sum()


# ---- counted -------------------------------------------------------------------------


def counts(scale: float) -> list[dict]:
    """Products of a sparse Hessian, passes of a Jacobian, nodes of a gradient."""
    n = max(int(MANY * scale), 10)
    x = sg.parameter(np.ones(n, np.float32), name="x")
    matrix = sg.sparse_hessian(banded(sg, x), x)
    found = [
        {
            "name": f"products of a Hessian of {n:,} with {DIAGONALS} diagonals",
            "found": _leading(matrix.data),
            "goal": DIAGONALS,
        }
    ]
    few = sg.parameter(np.ones(INPUTS, np.float32), name="few")
    w = sg.constant(np.ones((OUTPUTS, INPUTS), np.float32))
    passes = _passes(sg.jacobian(wide(sg, few, w), few))
    name = f"passes of a Jacobian from {INPUTS} to {OUTPUTS:,}"
    found.append({"name": name, "found": passes, "goal": INPUTS})
    return [*found, _nodes(max(int(LAYERS * scale), 2))]


def _leading(data) -> int:
    """Return the number of products for a sparse matrix: it gathers from them."""
    flat = data.inputs[0]
    while flat.ndim == 1:
        flat = flat.inputs[0]
    return flat.shape[0]


def _passes(y) -> int:
    """The number of directions at once: the new axis that vmap added."""
    units = [n for n in topological([y]) if n.op.name == "equal"]
    return units[0].types[0].shape[0]


def _nodes(layers: int) -> dict:
    h = sg.input("h", ("batch", 8))
    w = [sg.parameter(np.ones((8, 8), np.float32), name=f"w{k}") for k in range(layers)]
    for weight in w:
        h = sg.tanh(h @ weight)
    loss = sg.sum(h)
    forward = len(topological([loss]))
    both = len(topological([loss, *sg.grad(loss, w)]))
    name = f"nodes of a gradient of {layers} layers, per forward node"
    return {"name": name, "found": both / forward, "goal": 5}


# ---- a Hessian times a vector --------------------------------------------------------

NETWORKS = {"64-128-128-10": (64, 128, 10, 64), "784-256-256-10": (784, 256, 10, 256)}


def products_with_vectors(threads: int, seconds: float, scale: float) -> list[dict]:
    """Seconds of the gradient of a loss, and of a product with its Hessian."""
    sg.set_num_threads(threads)
    return [
        {"name": name, "threads": threads} | alternating(calls, seconds, ROUNDS)
        for name, shape in NETWORKS.items()
        for calls in [_network(*shape[:3], max(int(shape[3] * scale), 4))]
    ]


def _network(inputs: int, hidden: int, classes: int, batch: int) -> dict[str, Callable]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, inputs)).astype(np.float32)
    y = rng.integers(0, classes, batch)
    with sg.Graph(seed=0):
        a, b = sg.input("x", x.shape), sg.input("y", y.shape, "int64")
        model = sg.nn.Sequential(
            sg.nn.Linear(inputs, hidden), sg.nn.Tanh(),
            sg.nn.Linear(hidden, hidden), sg.nn.Tanh(), sg.nn.Linear(hidden, classes),
        )  # fmt: skip
        loss = sg.nn.cross_entropy(model(a), b)
        w = model.parameters()
        directions = {
            k: sg.constant(rng.normal(size=p.shape).astype(np.float32))
            for k, p in w.items()
        }
        first = sg.compile(sg.grad(loss, w), inputs=[a, b])
        second = sg.compile(sg.hvp(loss, w, directions), inputs=[a, b])
    return {"gradient": first.bind(x=x, y=y), "product": second.bind(x=x, y=y)}


# ---- whole matrices ------------------------------------------------------------------


def matrices(seconds: float, scale: float, jax=None) -> list[dict]:
    """Seconds of a Hessian of few variables and of a Jacobian of many values."""
    sg.set_num_threads(1)
    n = max(int(FEW * scale), 10)
    rng = np.random.default_rng(0)
    x = rng.normal(size=n).astype(np.float32)
    leaf = sg.input("x", (n,))
    loss = banded(sg, leaf)
    calls = {
        "ours": sg.compile(sg.sparse_hessian(loss, leaf).data).bind(x=x),
        "dense": sg.compile(sg.hessian(loss, leaf)).bind(x=x),
    }
    if jax is not None:
        dense = jax.hessian(lambda v: banded(jax.numpy, v))
        calls["jax"] = peers.jitted(jax, dense, x)
    name = f"Hessian of {n:,} with {DIAGONALS} diagonals"
    rows = [{"name": name, "goal": 20} | alternating(calls, seconds)]
    return [*rows, _jacobian(seconds, jax)]


def _jacobian(seconds: float, jax) -> dict:
    rng = np.random.default_rng(0)
    x = rng.normal(size=INPUTS).astype(np.float32)
    w = rng.normal(size=(OUTPUTS, INPUTS)).astype(np.float32)
    leaf, weights = sg.input("x", x.shape), sg.constant(w)
    dense = sg.compile(sg.jacobian(wide(sg, leaf, weights), leaf)).bind(x=x)
    calls = {"ours": dense}
    if jax is not None:
        forward = jax.jacfwd(lambda v: wide(jax.numpy, v, w))
        calls["jax"] = peers.jitted(jax, forward, x)
    name = f"Jacobian from {INPUTS} to {OUTPUTS:,}"
    return {"name": name, "goal": 1} | alternating(calls, seconds)


# ---- tables --------------------------------------------------------------------------


def _cells(row: dict) -> list[str]:
    met = "met" if row["found"] <= row["goal"] else "missed"
    return [row["name"], f"{row['found']:.3g}", f"<= {row['goal']}", met]


def _product_cells(row: dict) -> list[str]:
    cost = row["product"] / row["gradient"]
    name = f"{row['name']}, {row['threads']} threads"
    times = duration(row["gradient"]), duration(row["product"])
    return [name, *times, ratio(cost), "met" if cost <= 4 else "missed"]


def _matrix_cells(row: dict) -> list[str]:
    gain = row["jax"] / row["ours"] if "jax" in row else None
    met = "" if gain is None else "met" if gain >= row["goal"] else "missed"
    times = [duration(row.get(name)) for name in ("ours", "dense", "jax")]
    return [row["name"], *times, ratio(gain), f">= {row['goal']}", met]
