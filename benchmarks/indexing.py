"""Elements by position, running sums, products of several axes, against peers.

``python -m benchmarks indexing``: a million elements of float32, one thread, all in one
process that is pinned to one core before peers are imported. Each result is compared
with NumPy's before it is timed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import staticgrad as sg
from benchmarks import embedding, machine, peers
from benchmarks.clock import alternating
from benchmarks.tables import duration, ratio, table

ELEMENTS = 1_000_000
GOAL = 1 / 1.2
"""Of the best peer's time, over ours."""

RTOL = 1e-3  # sums of a million float32 in other orders


@dataclass(frozen=True, slots=True)
class Case:
    """One computation: ours on Tensors, NumPy's on arrays, peers' by their modules."""

    name: str
    arrays: tuple[np.ndarray, ...]
    ours: Callable
    numpy: Callable | None
    torch: Callable | None = None
    jax: Callable | None = None


def cases(n: int) -> Iterator[Case]:
    """All of them, at about `n` elements."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n).astype(np.float32)
    index = rng.integers(0, n, n)
    zeros = np.zeros(n, np.float32)
    yield Case(
        "cumsum", (x,), sg.cumsum, np.cumsum,
        lambda t, x: t.cumsum(x, 0), lambda j, x: j.numpy.cumsum(x),
    )  # fmt: skip
    rows = x[: n // 1000 * 1000].reshape(-1, 1000)
    yield Case(
        "cumsum of rows", (rows,), partial(sg.cumsum, axis=1),
        partial(np.cumsum, axis=1), lambda t, x: t.cumsum(x, 1),
        lambda j, x: j.numpy.cumsum(x, 1),
    )  # fmt: skip
    yield Case(
        "cumsum of columns", (rows,), partial(sg.cumsum, axis=0),
        partial(np.cumsum, axis=0), lambda t, x: t.cumsum(x, 0),
        lambda j, x: j.numpy.cumsum(x, 0),
    )  # fmt: skip
    yield Case(
        "gather", (x, index), sg.take, np.take,
        lambda t, x, i: x[i], lambda j, x, i: x[i],
    )  # fmt: skip
    yield Case(
        "scatter-add", (zeros, index, x), lambda b, i, u: b.at[i].add(u),
        lambda b, i, u: b + np.bincount(i, u, len(b)).astype(np.float32),
        lambda t, b, i, u: b.index_add(0, i, u), lambda j, b, i, u: b.at[i].add(u),
    )  # fmt: skip
    yield from tables_of_rows(rng, n)
    yield from orders(rng, n)
    yield from products(rng, n)


def tables_of_rows(rng, n: int) -> Iterator[Case]:
    """Rows of a table, as embeddings have them, and the largest of rows."""
    count, width = max(n // 64, 8), 64
    values = rng.normal(size=(count, width)).astype(np.float32)
    picked = rng.integers(0, count, max(n // 640, 4))
    updates = rng.normal(size=(len(picked), width)).astype(np.float32)
    yield Case(
        "gather of rows", (values, rng.integers(0, count, count)),
        lambda x, i: sg.take(x, i, 0), lambda x, i: np.take(x, i, 0),
        lambda t, x, i: x[i], lambda j, x, i: x[i],
    )  # fmt: skip
    yield Case(
        "scatter-add of rows", (values, picked, updates),
        lambda b, i, u: b.at[i].add(u), None,
        lambda t, b, i, u: b.index_add(0, i, u), lambda j, b, i, u: b.at[i].add(u),
    )  # fmt: skip
    wide = rng.normal(size=(max(n // 1000, 2), 1000)).astype(np.float32)
    for k in (1, 8, 64):
        yield Case(
            f"top {k} of 1,000", (wide,), lambda x, k=k: sg.top_k(x, k)[0],
            lambda x, k=k: -np.sort(np.partition(-x, k - 1, 1)[:, :k], 1),
            lambda t, x, k=k: t.topk(x, k, 1).values,
            lambda j, x, k=k: j.lax.top_k(x, k)[0],
        )  # fmt: skip


def orders(rng, n: int) -> Iterator[Case]:
    """Sorted rows, their largest elements, and rows that are read as columns."""
    x = rng.normal(size=n).astype(np.float32)
    rows = rng.normal(size=(max(n // 1000, 2), 1000)).astype(np.float32)
    yield Case(
        "sort", (x,), sg.sort, np.sort,
        lambda t, x: t.sort(x).values, lambda j, x: j.numpy.sort(x),
    )  # fmt: skip
    yield Case(
        "stable argsort of rows", (rows,), sg.argsort, partial(np.argsort, stable=True),
        lambda t, x: t.argsort(x, stable=True), lambda j, x: j.numpy.argsort(x),
    )  # fmt: skip
    yield Case(
        "argmax of rows", (rows,), partial(sg.argmax, axis=1),
        partial(np.argmax, axis=1), lambda t, x: t.argmax(x, 1),
        lambda j, x: j.numpy.argmax(x, 1),
    )  # fmt: skip
    yield Case(
        "argmax of all", (rows,), sg.argmax, np.argmax,
        lambda t, x: t.argmax(x), lambda j, x: j.numpy.argmax(x),
    )  # fmt: skip
    yield Case(
        "stack of two, last axis", (rows, rows + 1),
        lambda x, y: sg.stack([x, y], -1), lambda x, y: np.stack([x, y], -1),
        lambda t, x, y: t.stack([x, y], -1), lambda j, x, y: j.numpy.stack([x, y], -1),
    )  # fmt: skip
    side = max(int(n**0.5), 2)
    square = rng.normal(size=(side, side)).astype(np.float32)
    yield Case(
        "x.T * 2 + x", (square,), lambda x: x.T * 2 + x, lambda x: x.T * 2 + x,
        lambda t, x: x.T * 2 + x, lambda j, x: x.T * 2 + x,
    )  # fmt: skip
    vectors = square[0].copy(), square, square[1].copy()
    for text in ("i,ij,j->", "i,ij->j"):
        yield Case(
            f"einsum {text}", vectors[: text.count(",") + 1], partial(sg.einsum, text),
            partial(np.einsum, text, optimize=True),
            lambda t, *a, text=text: t.einsum(text, *a),
            lambda j, *a, text=text: j.numpy.einsum(text, *a, optimize="optimal"),
        )  # fmt: skip


def products(rng, n: int) -> Iterator[Case]:
    """Products of attention and bilinear forms by einsum."""
    time = max(int(n**0.5) // 8, 4)
    q, k = (
        rng.normal(size=(4, 8, time, 64)).astype(np.float32) for _ in range(2)
    )  # (batch, heads, time, head)
    scores = rng.normal(size=(4, 8, time, time)).astype(np.float32)
    found = [
        ("bhtd,bhsd->bhts", (q, k)),
        ("bhts,bhsd->bhtd", (scores, k)),
        ("bi,oij,bj->bo", _bilinear(rng, n)),
        ("bi,ij,bj->b", _bilinear(rng, n, None)),
    ]
    for text, arrays in found:
        yield Case(
            f"einsum {text}", arrays, partial(sg.einsum, text),
            partial(np.einsum, text, optimize=True),
            lambda t, *a, text=text: t.einsum(text, *a),
            lambda j, *a, text=text: j.numpy.einsum(text, *a, optimize="optimal"),
        )  # fmt: skip


def _bilinear(rng, n: int, out: int | None = 16) -> tuple[np.ndarray, ...]:
    size = max(int(n**0.5) // 8, 4)
    form = (size, size) if out is None else (out, size, size)
    shapes = ((64, size), form, (64, size))
    return tuple(rng.normal(size=s).astype(np.float32) for s in shapes)


def main(options) -> dict:
    """Measure and print."""
    rows = measure(options.seconds, options.scale, installed())
    print(render(rows))
    return {"indexing": rows}


def installed() -> dict:
    """The libraries that are there, with one thread."""
    machine.pin(1)
    found = {"numpy": np, "torch": peers.torch(), "jax": peers.jax()}
    return {name: library for name, library in found.items() if library is not None}


def measure(seconds: float, scale: float, libraries: dict) -> list[dict]:
    """Seconds per call of each library that is there."""
    sg.set_num_threads(1)
    n = max(int(ELEMENTS * scale), 4000)
    rows = [_row(case, seconds, libraries) for case in cases(n)]
    steps = embedding.functions(n // 10, libraries)
    name = f"descent of {embedding.BATCH} rows of {n // 10:,}"
    return [*rows, {"name": name} | alternating(steps, seconds)]


def _row(case: Case, seconds: float, libraries: dict) -> dict:
    with sg.Graph():
        leaves = [
            sg.input(f"x{k}", a.shape, a.dtype) for k, a in enumerate(case.arrays)
        ]
        f = sg.compile(case.ours(*leaves), inputs=leaves)
    bound = f.bind(**{f"x{k}": a for k, a in enumerate(case.arrays)})
    functions: dict = {"ours": bound}
    wanted = np.array(bound())
    for name, library in libraries.items():
        function = _of_peer(case, name, library)
        if function is None:
            continue
        found = np.asarray(function())
        scale = max(float(np.abs(wanted).max()), 1e-30)
        if np.abs(found - wanted).max() <= RTOL * scale:
            functions[name] = function
    return {"name": case.name} | alternating(functions, seconds)


def _of_peer(case: Case, name: str, library) -> Callable | None:
    call = getattr(case, name)
    if call is None:
        return None
    if name == "numpy":
        return partial(call, *case.arrays)
    if name == "torch":
        return partial(call, library, *map(library.from_numpy, case.arrays))
    return peers.jitted(library, partial(call, library), *case.arrays)


def render(rows: list[dict]) -> str:
    """The table: times, and the best peer's over ours."""
    known = ("numpy", "torch", "jax", "jax by hand")
    names = [p for p in known if any(p in row for row in rows)]
    header = ("computation", "ours", *names, "best / ours", "goal")
    return table(header, [_cells(row, names) for row in rows])


def _cells(row: dict, names: list[str]) -> list[str]:
    found = [row[p] for p in names if p in row]
    gain = min(found) / row["ours"] if found else None
    goal = "" if gain is None else "met" if gain >= GOAL else "missed"
    times = [duration(row.get(p)) for p in ("ours", *names)]
    return [row["name"], *times, ratio(gain), goal]
