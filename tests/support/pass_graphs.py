"""Small graphs that passes are tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import staticgrad as sg
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Tensor
from staticgrad.ops.named import named

Build = Callable[..., Any]
SHAPES: dict[str, tuple[Any, ...]] = {"x": ("n", 4), "y": ("n", 4), "m": (4, 3)}


def graph_of(build: Build, dtype: str = "float32", **shapes: Any) -> Graph:
    """The graph of `build`, whose parameters name inputs."""
    names = build.__code__.co_varnames[: build.__code__.co_argcount]
    with sg.Graph() as graph:
        inputs = [sg.input(n, {**SHAPES, **shapes}[n], dtype) for n in names]
        outputs = build(*inputs)
    graph.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return graph


def c(value: float, dtype: str = "float32") -> Tensor:
    return sg.constant(value, dtype=dtype)


def full(value: float, *shape: Any) -> Tensor:
    return named("broadcast_to", c(value), shape=shape)


def softmax(x: Tensor) -> Tensor:
    e = named("exp", x)
    total = named("reduce_sum", e, axes=(1,))
    return named("divide", e, named("reshape", total, shape=(x.shape[0], 1)))


def perceptron(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    h = sg.tanh(x @ m + 1.0)
    loss = sg.mean(h * h)
    return loss, *sg.grad(loss, [x, m])


def classifier(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    loss = -sg.mean(sg.log(softmax(x @ m))[:, 1])
    return loss, sg.grad(loss, m)


def dropout(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    keep = sg.random.uniform(sg.random.key(3), x.shape) < 0.5
    h = sg.by_mode(train=sg.where(keep, x * 2.0, 0.0), eval=x) * y
    loss = sg.sum(h * h)
    return loss, sg.grad(loss, x)


def duplicates(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return tuple(sg.exp(x + y) * sg.exp(x + y) * k for k in (1.0, 2.0, 2.0))


def moves(x: Tensor, m: Tensor) -> Tensor:
    turned = sg.transpose(sg.transpose(x)) @ m
    return sg.reshape(sg.reshape(turned.T, (-1,)), (3, -1))[::-1][::-1]


def numbers(x: Tensor) -> Tensor:
    return (sg.ones((3, 4)) * 2.0 + 1.0).sum(axis=0) * x / 4.0 - 0.0


def integers(m: Tensor) -> Tensor:
    return m.astype("int32") * 3 * 2 + 0 - (m.astype("int32") * 0)


def updates(x: Tensor) -> Tensor:
    total = sg.state(np.zeros(4, np.float32), name="total")
    sg.update(total, total * 1.0 + sg.sum(x, axis=0))
    return total * 2.0


def gathers(m: Tensor) -> Tensor:
    rows = sg.take(m, np.array([0, 2, -1]), axis=0)
    return sg.grad(sg.sum(rows * rows), m)


def specials(x: Tensor) -> Tensor:
    return sg.log(sg.exp(x) - 1.0) + sg.log(1.0 - sg.sigmoid(x)) + sg.stop_gradient(x)


def higher(x: Tensor) -> Tensor:
    first = sg.grad(sg.sum(x**3), x)
    return sg.grad(sg.sum(first * first), x)


def halves(x: Tensor) -> tuple[Tensor, ...]:
    y = x.astype("float16")
    return sg.sum(y * y), sg.cumsum(y, axis=0), sg.max(y, axis=1), y.T @ y


def nothing(x: Tensor) -> Tensor:
    return x


GRAPHS: list[Build] = [
    softmax, perceptron, classifier, dropout, duplicates, moves, numbers, integers,
    updates, gathers, specials, higher, halves, nothing,
]  # fmt: skip
