"""Test arguments of elementwise ops: ordinary, special, empty, broadcast.

Float samples come in float32 and float64; derivatives are checked on the ordinary
float64 ones only, away from kinks and special values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.op import Bad, Sample

Array = npt.NDArray[Any]

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-6, -1e-6, 1e-42, 1e-310, 3e4, -3e4, 1e30, -1e30,
    1e300, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
INTEGERS = ("int8", "int32", "int64", "uint8", "uint64")


def spread(low: float, high: float, *shape: int) -> Array:
    """Return fixed nonzero numbers between `low` and `high`."""
    draw = np.random.default_rng(7).uniform(low, high, shape)
    return np.where(np.abs(draw) < 1e-3, 0.7 * high, draw)


def special(values: Sequence[float] = SPECIAL, dtype: str = "float64") -> Array:
    """Return `values` as an array; unrepresentable ones become inf or 0."""
    with np.errstate(over="ignore", under="ignore"):
        return np.array(values).astype(dtype)


def unary(
    low: float, high: float, extra: Sequence[float] = SPECIAL, ulp: float = 4.0
) -> Callable[[], list[Sample]]:
    """Return samples of a floating-point function that is smooth in (low, high)."""

    def samples() -> list[Sample]:
        plain = [
            spread(low, high, *shape) for shape in ((5,), (2, 3), (), (0,), (1, 1))
        ]
        wide = spread(low, high, 67)
        return [
            *(Sample((x,), ulp=ulp) for x in plain),
            Sample((wide,), grad=False, ulp=ulp),
            Sample((wide.astype("float32"),), grad=False, ulp=ulp),
            Sample((plain[1].astype("float32").T,), grad=False, ulp=ulp),
            Sample((special(extra),), grad=False, ulp=ulp),
            Sample((special(extra, "float32"),), grad=False, ulp=ulp),
        ]

    return samples


def unary_integers() -> list[Sample]:
    """Return samples of integers: both signs, extremes, 0-d, empty."""
    found = []
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        found.append(np.array([0, 1, 5, 100, info.max, info.min], dtype))
    arrays = [*found, np.array(3), np.zeros((0, 2), "int32")]
    return [Sample((x,), grad=False) for x in arrays]


def unary_bools() -> list[Sample]:
    """Return samples of bool: a matrix, 0-d, empty."""
    arrays = (np.array([[True, False, True]]), np.array(True), np.zeros((2, 0), bool))
    return [Sample((x,), grad=False) for x in arrays]


def pairs(low: float, high: float, ulp: float = 4.0) -> list[Sample]:
    """Return samples of a function of two floats: broadcast, 0-d, empty, special."""
    x, y = spread(low, high, 2, 3), spread(low, high, 2, 3)[:, ::-1].copy()
    every = np.array([(a, b) for a in SPECIAL for b in SPECIAL])
    with np.errstate(over="ignore", under="ignore"):
        single = every.astype("float32")
    return [
        Sample((x, y + 0.01), ulp=ulp),
        Sample((x, y[0] + 0.01), ulp=ulp),
        Sample((x[0] + 0.01, y), ulp=ulp),
        Sample((x[:, :1], y[:1] + 0.02), ulp=ulp),
        Sample((x, y[0, 0] + 0.03), ulp=ulp),
        Sample((x[0, 0] + 0.01, y[1, 2]), ulp=ulp),
        Sample((np.zeros((0, 3)), np.ones((1, 3))), ulp=ulp),
        Sample(
            (x.astype("float32"), y.astype("float32").T.copy().T), grad=False, ulp=ulp
        ),
        Sample((every[:, 0], every[:, 1]), grad=False, ulp=ulp),
        Sample((single[:, 0].copy(), single[:, 1].copy()), grad=False, ulp=ulp),
    ]


def integer_pairs(dtypes: Sequence[str] = INTEGERS) -> list[Sample]:
    """Return samples of two integers: pairs of small ones and extremes, per dtype."""
    found = []
    for dtype in dtypes:
        info = np.iinfo(dtype)
        some = {0, 1, 2, 7, info.max, info.min, max(info.min, -1), max(info.min, -3)}
        grid = np.array([(a, b) for a in sorted(some) for b in sorted(some)], dtype)
        found.append((grid[:, 0].copy(), grid[:, 1].copy()))
    found.append((np.arange(6).reshape(2, 3), np.array([2, 3, 4])))
    return [Sample(pair, grad=False) for pair in found]


def bool_pairs() -> list[Sample]:
    """Return samples of two bools: all pairs, broadcast, empty."""
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    found = ((x, y), (x[:, None], y), (np.zeros(0, bool), np.array(True)))
    return [Sample(pair, grad=False) for pair in found]


def bad_unary(match: str, dtype: str) -> Callable[[], list[Bad]]:
    """Return arguments of `dtype` that a function of one argument rejects."""
    return lambda: [Bad((np.zeros(2, dtype),), {}, DTypeError, match)]


def bad_pair(match: str = "", dtype: str = "bool") -> Callable[[], list[Bad]]:
    """Return pairs that are rejected: bad shapes, mixed dtypes and a `dtype`."""

    def bad() -> list[Bad]:
        x, y = np.zeros((2, 3), "float32"), np.zeros((2, 4), "float32")
        mixed = np.zeros(3)
        found = [
            Bad((x, y), {}, ShapeError, "shapes that broadcast"),
            Bad((x, mixed), {}, DTypeError, "one dtype"),
        ]
        wrong = np.zeros(2, dtype)
        kind = [Bad((wrong, wrong), {}, DTypeError, match)] if match else []
        return found + kind

    return bad
