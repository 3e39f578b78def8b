"""Elementary functions against PyTorch and NumPy, each into memory that is there."""

from functools import partial
from importlib.util import find_spec
from math import exp, log

import numpy as np

import staticgrad as sg
from benchmarks.clock import alternating
from benchmarks.tables import duration, ratio, table

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


def torch_with_one_thread():
    """PyTorch, if it is installed."""
    if find_spec("torch") is None:
        return None
    import torch  # heavy, and not always there

    torch.set_num_threads(1)
    return torch


def render(rows: list[dict]) -> str:
    """The table, with geometric means over the peers that are there."""
    peers = [p for p in ("torch", "numpy") if any(p in row for row in rows)]
    header = ("function", "ours", *(f"{peer}{t}" for peer in peers for t in ("", " x")))
    lines = [_cells(row, peers) for row in rows]
    means = ["geometric mean", ""]
    for peer in peers:
        logs = [log(row[peer] / row["ours"]) for row in rows if peer in row]
        means += ["", ratio(exp(sum(logs) / len(logs)))]
    return table(header, [*lines, means])


def _cells(row: dict, peers: list[str]) -> list[str]:
    cells = [row["name"], duration(row["ours"])]
    for peer in peers:
        found = row.get(peer)
        cells += [duration(found), ratio(found and found / row["ours"])]
    return cells
