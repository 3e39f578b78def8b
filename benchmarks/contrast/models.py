"""The five models, each written once over the operations of an engine.

``loss(ops, p, d)`` gets parameters and data as the engine's values; ``d["steps"]`` of
the recurrent network is an array over whose first axis ``ops.scan`` goes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Model:
    """A network, its data, and the rate of plain gradient descent."""

    name: str
    arrays: Callable[[], tuple[Arrays, Arrays]]
    loss: Callable[[Any, dict[str, Any], dict[str, Any]], Any]
    rate: float


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _layers(rng: np.random.Generator, sizes: list[int]) -> Arrays:
    found = {}
    for number, (n, m) in enumerate(pairwise(sizes)):
        found[f"w{number}"] = _normal(rng, n, m) / np.float32(np.sqrt(n))
        found[f"b{number}"] = np.zeros(m, np.float32)
    return found


def _network(ops: Any, p: dict[str, Any], x: Any, between: Any) -> Any:
    count = len(p) // 2
    for number in range(count):
        x = ops.add(ops.matmul(x, p[f"w{number}"]), p[f"b{number}"])
        if number < count - 1:
            x = between(x)
    return x


def _squared_error(ops: Any, found: Any, wanted: Any) -> Any:
    apart = ops.sub(found, wanted)
    return ops.mean(ops.mul(apart, apart))


def _regression() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(0)
    x = _normal(rng, 200, 1)
    y = 2 * x + 1 + np.float32(0.1) * _normal(rng, 200, 1)
    return _layers(rng, [1, 10, 1]), {"x": x, "y": y}


def _logistic() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(0)
    x = _normal(rng, 1000, 20)
    return _layers(rng, [20, 1]), {"x": x, "y": np.float32(_normal(rng, 1000, 1) > 0)}


def _digits() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(0)
    data = {"x": _normal(rng, 32, 64), "y": rng.integers(0, 10, 32)}
    return _layers(rng, [64, 128, 64, 10]), data


def _deep() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(0)
    data = {"x": _normal(rng, 32, 64), "y": _normal(rng, 32, 64)}
    return _layers(rng, [64] * 21), data


def _recurrent() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(0)
    p = {
        "w": _normal(rng, 32, 64) / np.float32(8),
        "u": _normal(rng, 64, 64) / np.float32(8),
        "b": np.zeros(64, np.float32),
    }
    state = np.zeros((32, 64), np.float32)
    steps, y = _normal(rng, 20, 32, 32), _normal(rng, 32, 64)
    return p, {"steps": steps, "start": state, "y": y}


def _logistic_loss(ops: Any, p: dict[str, Any], d: dict[str, Any]) -> Any:
    z = _network(ops, p, d["x"], None)
    return ops.mean(ops.sub(ops.softplus(z), ops.mul(d["y"], z)))


def _recurrent_loss(ops: Any, p: dict[str, Any], d: dict[str, Any]) -> Any:
    def step(state: Any, x: Any) -> Any:
        both = ops.add(ops.matmul(x, p["w"]), ops.matmul(state, p["u"]))
        return ops.tanh(ops.add(both, p["b"]))

    return _squared_error(ops, ops.scan(step, d["start"], d["steps"]), d["y"])


MODELS = (
    Model(
        "regression 1-10-1",
        _regression,
        lambda ops, p, d: _squared_error(
            ops, _network(ops, p, d["x"], ops.relu), d["y"]
        ),
        0.1,
    ),
    Model("logistic 1000x20", _logistic, _logistic_loss, 0.1),
    Model(
        "digits 64-128-64-10",
        _digits,
        lambda ops, p, d: ops.cross_entropy(_network(ops, p, d["x"], ops.relu), d["y"]),
        0.1,
    ),
    Model(
        "deep 20x64",
        _deep,
        lambda ops, p, d: _squared_error(
            ops, _network(ops, p, d["x"], ops.tanh), d["y"]
        ),
        0.01,
    ),
    Model("recurrent, 20 steps of 64", _recurrent, _recurrent_loss, 0.1),
)
