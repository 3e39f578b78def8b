"""Random graphs for property tests: every kind of op, shared tensors, dead ends.

A graph is made from a seed. Values stay of moderate size, so that targets can be
compared with one tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import staticgrad as sg

SIZES: tuple[Any, ...] = ("n", 3, 4, 5)
BOUND = {"n": 6}


@dataclass
class RandomGraph:
    """Inputs with data, outputs, and updates of states."""

    inputs: list[Any]
    data: dict[str, Any]
    outputs: list[Any]
    updates: list[Any]
    states: list[Any]


def static(dim: Any) -> bool:
    return isinstance(dim, int)


class _Maker:
    def __init__(self, seed: int, dtype: str, bound: dict[str, int]) -> None:
        self.bound = bound
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.pool: list[Any] = []
        self.data: dict[str, Any] = {}

    def pick(self, wanted: Callable[[Any], bool] = lambda t: True) -> Any:
        found = [t for t in self.pool if wanted(t)]
        if not found:
            return self.pool[0]
        weight = np.arange(1, len(found) + 1, dtype=float)
        return found[self.rng.choice(len(found), p=weight / weight.sum())]

    def leaf(self, number: int) -> Any:
        rank = self.rng.integers(1, 4)
        shape = tuple(SIZES[i] for i in self.rng.integers(0, len(SIZES), rank))
        name = f"x{number}"
        real = tuple(self.bound.get(d, d) for d in shape)
        self.data[name] = self.rng.uniform(-1.5, 1.5, real).astype(self.dtype)
        return sg.input(name, shape, dtype=self.dtype)

    def same_shape(self, x: Any) -> Any:
        return self.pick(lambda t: t.shape == x.shape)

    def step(self) -> Any:
        kinds = [
            self.unary, self.unary, self.binary, self.binary, self.broadcast,
            self.reduce, self.reduce, self.normalise, self.move, self.slice,
            self.join, self.product, self.choose, self.gather, self.outer,
        ]  # fmt: skip
        return kinds[self.rng.integers(len(kinds))]()

    def unary(self) -> Any:
        names = "tanh sigmoid exp sin negative absolute square relu".split()
        x = self.pick()
        y = getattr(sg, names[self.rng.integers(len(names))])(sg.clip(x, -2.0, 2.0))
        return y if self.rng.random() < 0.5 else y * 0.5

    def binary(self) -> Any:
        x = self.pick()
        y = self.same_shape(x)
        kind = self.rng.integers(4)
        return [x + y, x - y, sg.tanh(x) * y, sg.maximum(x, y)][kind]

    def broadcast(self) -> Any:
        x = self.pick(lambda t: t.ndim >= 2)
        if x.ndim < 2:
            return x * 2.0
        axis = int(self.rng.integers(x.ndim))
        return sg.tanh(x) + sg.mean(x, axis=axis, keepdims=True)

    def outer(self) -> Any:
        """Each element of one with each of another: axes behind those of both."""
        x = self.pick(lambda t: t.ndim <= 2)
        y = self.pick(lambda t: t.ndim + x.ndim <= 4)
        if y.ndim + x.ndim > 4:
            return x - 0.5
        return sg.tanh(x[(..., *(None,) * y.ndim)] * y)

    def reduce(self) -> Any:
        x = self.pick(lambda t: t.ndim >= 1)
        if x.ndim == 0:
            return sg.tanh(x)
        count = self.rng.integers(1, x.ndim + 1)
        axes = tuple(int(a) for a in self.rng.permutation(x.ndim)[:count])
        kind = [sg.mean, sg.max, sg.min, sg.mean][self.rng.integers(4)]
        return kind(x, axis=axes, keepdims=bool(self.rng.integers(2)))

    def normalise(self) -> Any:
        x = self.pick(lambda t: t.ndim >= 1)
        if x.ndim == 0:
            return sg.exp(-x * x)
        axis = int(self.rng.integers(x.ndim))
        y = sg.exp(x - sg.max(x, axis=axis, keepdims=True))
        return y / sg.sum(y, axis=axis, keepdims=True)

    def move(self) -> Any:
        x = self.pick(lambda t: t.ndim >= 2)
        if x.ndim < 2:
            return x[..., None] if x.ndim else x + 1.0
        if self.rng.random() < 0.5:
            return sg.transpose(x, tuple(int(a) for a in self.rng.permutation(x.ndim)))
        return sg.reshape(x, (-1, x.shape[-1]))

    def slice(self) -> Any:
        def wanted(t: Any) -> bool:
            return t.ndim >= 1 and static(t.shape[0]) and t.shape[0] >= 2

        x = self.pick(wanted)
        if not wanted(x):
            return x * 0.5
        return [x[1:], x[::-1], x[:-1], x[0]][self.rng.integers(4)]

    def join(self) -> Any:
        x = self.pick(lambda t: t.ndim >= 1)
        if x.ndim == 0:
            return sg.stack([x, x * 2.0])
        if self.rng.random() < 0.3:
            return sg.pad(x, [(1, 1)] + [(0, 0)] * (x.ndim - 1))
        return sg.concatenate([x, sg.sin(self.same_shape(x))], axis=-1)

    def product(self) -> Any:
        x = self.pick(lambda t: t.ndim >= 2)
        if x.ndim < 2:
            return x + 0.5
        y = self.same_shape(x)
        return sg.tanh(sg.matmul(x, sg.swapaxes(y, -1, -2)))

    def choose(self) -> Any:
        x = self.pick()
        y = self.same_shape(x)
        return sg.where(x > y, sg.sigmoid(x), y * x)

    def gather(self) -> Any:
        def wanted(t: Any) -> bool:
            return t.ndim >= 1 and static(t.shape[0]) and t.shape[0] >= 3

        x = self.pick(wanted)
        if not wanted(x):
            return sg.cos(x)
        return sg.take(x, np.array([2, 0, 2, -1]), axis=0)


def random_graph(
    seed: int, steps: int = 14, dtype: str = "float64", n: int = BOUND["n"]
) -> RandomGraph:
    """A graph of about `steps` operations, with an update of a state or two.

    `n` is the size of the symbolic axes of its data.
    """
    make = _Maker(seed, dtype, {"n": n})
    make.pool = [make.leaf(number) for number in range(3)]
    inputs = list(make.pool)
    states = [
        sg.state(make.rng.uniform(-1, 1, (3, 4)).astype(dtype), name=f"s{n}_{seed}")
        for n in range(2)
    ]
    make.pool += states
    for _ in range(steps):
        make.pool.append(make.step())
    outputs = [make.pool[-1], make.pick(), make.pick()]
    outputs.append(sg.sum(make.pool[-2]))
    a, b = states
    mean = sg.mean(make.pool[-1])
    updates = [(a, b * 0.5 + sg.tanh(mean)), (b, a - b)]
    return RandomGraph(inputs, make.data, outputs, updates, states)
