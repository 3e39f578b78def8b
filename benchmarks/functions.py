"""Elementary functions against PyTorch and NumPy, each into memory that is there."""

from functools import partial

import numpy as np

import staticgrad as sg
from benchmarks.clock import alternating
from benchmarks.tables import duration, times_faster

NAMES = ("exp", "log", "log1p", "expm1", "tanh", "sigmoid", "erf", "sin", "cos")
NUMPY = {"exp", "log", "log1p", "expm1", "tanh", "sin", "cos"}


def measure(elements: int, seconds: float, torch=None) -> list[dict]:
    """Seconds per call of each function on float32 numbers between 0.1 and 4."""
    sg.set_num_threads(1)
    x = np.linspace(0.1, 4, elements, dtype=np.float32)
    return [_row(name, x, seconds, torch) for name in NAMES]


def _row(name: str, x: np.ndarray, seconds: float, torch) -> dict:
    with sg.Graph():
        leaf = sg.input("x", x.shape)
        bound = sg.compile(getattr(sg, name)(leaf)).bind(x=x)
    functions: dict = {"ours": bound}
    if name in NUMPY:
        functions["numpy"] = partial(getattr(np, name), x, out=np.empty_like(x))
    if torch is not None:
        into = torch.empty(x.shape)
        functions["torch"] = partial(
            getattr(torch, name), torch.from_numpy(x), out=into
        )
    return {"name": name} | alternating(functions, seconds)


def render(rows: list[dict]) -> str:
    """The table, with geometric means over the peers that are there."""
    return times_faster("function", rows, ("torch", "numpy"), duration)
