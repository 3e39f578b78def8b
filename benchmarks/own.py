"""Operations of one's own, callbacks and taps, against built-in ones and peers.

``python -m benchmarks own``: one thread, one process, pinned. A function of numbers is
compared with the same made of built-in operations, one of arrays with a direct call of
what Numba compiled, ``pure_callback`` with JAX's, a step with taps with one without.
"""

from collections.abc import Callable, Iterator

import numba
import numpy as np

import staticgrad as sg
from benchmarks import machine, peers
from benchmarks.clock import alternating
from benchmarks.tables import duration, ratio, table

ELEMENTS = 1_000_000
SMALL = 64  # elements of what goes to Python and back

Timed = dict[str, Callable[[], object]]


@numba.njit(error_model="numpy")
def soft(x):
    """x / (1 + |x|)."""
    return x / (np.float32(1) + abs(x))


@numba.njit(error_model="numpy")
def soft_slope(g, y, x):
    """The derivative times g."""
    d = np.float32(1) + abs(x)
    return g / (d * d)


@numba.njit
def averaged(x):
    """A running average."""
    y = np.empty_like(x)
    y[0] = x[0]
    for i in range(1, len(x)):
        y[i] = np.float32(0.9) * y[i - 1] + np.float32(0.1) * x[i]
    return y


def numbers(x: np.ndarray) -> Iterator[tuple[str, Timed]]:
    """A function of numbers, and its gradient."""
    own = sg.custom_op("soft", kind="scalar", forward=soft, backward=soft_slope)
    leaf = sg.input("x", x.shape)
    pairs = {"ours": own(leaf), "built in": leaf / (1 + abs(leaf))}
    yield (
        "function of numbers",
        {name: sg.compile(y).bind(x=x) for name, y in pairs.items()},
    )
    yield (
        "its gradient",
        {
            name: sg.compile(sg.grad(sg.sum(y), leaf)).bind(x=x)
            for name, y in pairs.items()
        },
    )


def arrays(x: np.ndarray, jax) -> Iterator[tuple[str, Timed]]:
    """A function of arrays, and one call of Python."""
    own = sg.custom_op("averaged", kind="array", forward=averaged)
    leaf = sg.input("x", x.shape)
    averaged(x)
    yield (
        "function of arrays",
        {"ours": sg.compile(own(leaf)).bind(x=x), "Numba": lambda: averaged(x)},
    )
    little = np.ascontiguousarray(x[:SMALL])
    leaf = sg.input("x", little.shape)
    called = sg.pure_callback(np.negative, leaf.shape, leaf.dtype, leaf)
    timed: Timed = {"ours": sg.compile(called * 2).bind(x=little)}
    if jax is not None:
        timed["JAX"] = _jax(jax, little)
    yield "pure_callback", timed


def _jax(jax, x: np.ndarray) -> Callable[[], object]:
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def run(x):
        return jax.pure_callback(np.negative, kind, x) * 2

    return peers.jitted(jax, run, x)


def taps() -> Iterator[tuple[str, Timed]]:
    """A training step without a tap, after one, with a ring buffer, with a callback.

    The rate is 0: what has learned its batch makes denormal numbers, which are slow.
    """
    executables = {}
    for name in ("without", "removed", "ours", "callback"):
        with sg.Graph(seed=0):
            x, y = sg.input("x", (32, 16)), sg.input("y", (32,))
            layer = sg.nn.Linear(16, 1)
            loss = sg.mean((layer(x)[:, 0] - y) ** 2)
            pairs = sg.optim.SGD(0.0).updates(
                sg.grad(loss, layer.parameters()), layer.parameters()
            )
        f = executables[name] = sg.compile(loss, updates=pairs, mode="train")
        if name in ("removed", "ours"):
            handle = f.tap(loss, record=100)
        if name == "removed":
            handle.remove()
        if name == "callback":
            f.tap(loss, _nothing)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(32, 16)).astype(np.float32)
    bound = {
        name: f.bind(x=data, y=np.ascontiguousarray(data[:, 0]))
        for name, f in executables.items()
    }
    for name in ("removed", "ours", "callback"):
        label = {"ours": "ring buffer"}.get(name, name)
        yield f"step, tap: {label}", {"ours": bound[name], "without": bound["without"]}


def _nothing(value: np.ndarray) -> None:
    """Look at nothing."""


def main(options) -> dict:
    """Print the table; the rows as dictionaries."""
    machine.pin(1)
    found = measure(options.seconds, options.scale, options.rounds, peers.jax())
    print(render(found))
    return {"own": found}


def measure(seconds: float, scale: float, rounds: int, jax=None) -> list[dict]:
    """Seconds per call of each case and of what it is compared with."""
    sg.set_num_threads(1)
    n = max(int(ELEMENTS * scale), 1000)
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    found = []
    for part in (numbers(x), arrays(x, jax), taps()):
        for name, timed in part:
            times = alternating(timed, seconds, rounds)
            other = next((k for k in times if k != "ours"), None)
            found.append({"case": name, "against": other, **times})
    return found


def render(found: list[dict]) -> str:
    """The table."""
    rows = [
        (
            row["case"],
            duration(row["ours"]),
            row["against"] or "-",
            duration(row.get(row["against"])),
            ratio(row["ours"] / row[row["against"]] if row["against"] else None),
        )
        for row in found
    ]
    return table(("case", "ours", "against", "its time", "ours / its"), rows)
