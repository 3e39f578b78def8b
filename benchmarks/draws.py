"""``python -m benchmarks random``: nanoseconds a random number, beside the peers.

One thread; ours are bound calls, PyTorch fills a tensor that is there, jitted JAX makes
a new array. All draw what a step would: other numbers in each call of PyTorch and ours
with a key that is an input, the same in each of JAX.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

import staticgrad as sg
from benchmarks import machine, peers
from benchmarks.clock import alternating
from benchmarks.tables import times_faster

ROWS = (
    ("bits", "uint32"), ("uniform", "float32"), ("uniform", "float64"),
    ("normal", "float32"), ("normal", "float64"), ("exponential", "float32"),
    ("integers", "int64"), ("bernoulli", "bool"), ("gamma", "float32"),
    ("permutation", "int64"),
)  # fmt: skip
SHAPE_OF_GAMMA = 2.5


def main(options) -> dict:
    """Measure and print."""
    machine.pin(1)
    rows = measure(options.elements, options.seconds)
    print(f"\nns per number, {options.elements:,} numbers, one thread")
    print(render(rows))
    return {"random": rows}


def measure(elements: int, seconds: float) -> list[dict]:
    """Nanoseconds per number of each row and library."""
    sg.set_num_threads(1)
    makers = {"ours": _ours}
    if (torch := peers.torch()) is not None:
        makers["torch"] = partial(_torch, torch)
    if (jax := peers.jax()) is not None:
        jax.config.update("jax_enable_x64", True)
        makers["jax"] = partial(_jax, jax)
    return [_row(kind, dtype, elements, seconds, makers) for kind, dtype in ROWS]


def _row(kind: str, dtype: str, n: int, seconds: float, makers: dict) -> dict:
    found = {name: make(kind, dtype, n) for name, make in makers.items()}
    known = {name: call for name, call in found.items() if call is not None}
    times = alternating(known, seconds)
    return {"name": f"{kind} {dtype}"} | {k: t / n * 1e9 for k, t in times.items()}


def _ours(kind: str, dtype: str, n: int) -> Callable[[], object]:
    with sg.Graph():
        key = sg.input("key", (4,), "uint32")
        draw = {
            "bernoulli": lambda: sg.random.bernoulli(key, 0.1, (n,)),
            "integers": lambda: sg.random.integers(key, 0, 1000, (n,), dtype),
            "gamma": lambda: sg.random.gamma(key, SHAPE_OF_GAMMA, (n,), dtype),
            "permutation": lambda: sg.random.permutation(key, n),
        }.get(kind, lambda: getattr(sg.random, kind)(key, (n,), dtype))
        return sg.compile(draw()).bind(key=np.array([1, 2, 3, 4], np.uint32))


def _torch(torch, kind: str, dtype: str, n: int) -> Callable[[], object] | None:
    if kind in ("bits", "gamma"):
        return None
    if kind == "permutation":
        return partial(torch.randperm, n)
    x = torch.empty(n, dtype=getattr(torch, dtype))
    return {
        "uniform": x.uniform_,
        "normal": x.normal_,
        "exponential": x.exponential_,
        "bernoulli": partial(x.bernoulli_, 0.1),
        "integers": partial(x.random_, 0, 1000),
    }[kind]


def _jax(jax, kind: str, dtype: str, n: int) -> Callable[[], object]:
    r = jax.random
    draw = {
        "bits": lambda k: r.bits(k, (n,), dtype),
        "bernoulli": lambda k: r.bernoulli(k, 0.1, (n,)),
        "integers": lambda k: r.randint(k, (n,), 0, 1000, dtype),
        "gamma": lambda k: r.gamma(k, SHAPE_OF_GAMMA, (n,), dtype),
        "permutation": lambda k: r.permutation(k, n),
    }.get(kind, lambda k: getattr(r, kind)(k, (n,), dtype))
    return peers.jitted(jax, draw, r.key(0))


def render(rows: list[dict]) -> str:
    """The table, with geometric means over the peers that are there."""
    return times_faster("draw", rows, ("torch", "jax"), _digits)


def _digits(nanoseconds: float | None) -> str:
    return "-" if nanoseconds is None else f"{nanoseconds:.2f}"
