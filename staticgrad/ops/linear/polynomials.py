"""Polynomials as arrays of coefficients, the highest first; convolve and correlate.

Composites, with the derivatives of their parts. Unlike NumPy's these functions keep
leading coefficients that are 0, since whether one is would depend on the data.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim
from staticgrad.ir.types import kind_of
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import checked, position, taken
from staticgrad.ops.movement.indexing import getitem
from staticgrad.ops.movement.joining import concatenate
from staticgrad.ops.movement.reshaping import ravel
from staticgrad.ops.movement.slicing import flip, sliced
from staticgrad.ops.movement.views import reshaped
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted, quotients, widened
from staticgrad.ops.reductions.reduce import sum
from staticgrad.ops.rules import shape_error

UNROLLED = 16  # taps up to which a convolution is a sum of slices, else of windows

Mode = Literal["full", "same", "valid"]


@widened
def convolve(a: ArrayLike, v: ArrayLike, mode: Mode = "full") -> Tensor:
    """Return the convolution of two vectors: ``y[n] = sum(a[m] * v[n - m])``.

    With `mode` "full" all places where they overlap, n + m - 1; with "same" as many as
    the longer one has, with "valid" those where they overlap completely. ShapeError for
    other ranks, for empty arrays, and for "same" and "valid" where it is not known
    which is longer.

    >>> import staticgrad as sg
    >>> sg.compile(sg.convolve([1, 2, 3], [0, 1]), target="reference")().tolist()
    [0, 1, 2, 3]
    """
    x, y = _lines("convolve", a, v)
    if _is_shorter(x, y):
        x, y = y, x
    return _slid("convolve", x, flip(y), mode)


@widened
def correlate(a: ArrayLike, v: ArrayLike, mode: Mode = "valid") -> Tensor:
    """Return the cross-correlation of two vectors: ``y[k] = sum(a[n + k] * v[n])``.

    `mode` is as in `convolve`.

    >>> import staticgrad as sg
    >>> y = sg.correlate([1, 2, 3], [0, 1, 0], "same")
    >>> sg.compile(y, target="reference")().tolist()
    [1, 2, 3]
    """
    x, y = _lines("correlate", a, v)
    if _is_shorter(x, y):
        return flip(_slid("correlate", y, x, mode, turned=True))
    return _slid("correlate", x, y, mode)


def _lines(name: str, a: ArrayLike, v: ArrayLike) -> tuple[Tensor, Tensor]:
    x, y = promoted(a, v)
    x, y = (t if t.ndim else reshaped(t, (1,)) for t in (x, y))
    if x.ndim != 1 or y.ndim != 1 or 0 in (*x.shape, *y.shape):
        raise shape_error(name, (x, y), "two arrays of one axis, not empty")
    if kind_of(x.dtype) == "b":
        raise shape_error(name, (x, y), "numbers", "cast with .astype")
    return x, y


def _is_shorter(x: Tensor, y: Tensor) -> bool:
    less = y.shape[0] - x.shape[0]
    return less > 0 if isinstance(less, int) else isinstance(x.shape[0], int)


def _slid(name: str, x: Tensor, y: Tensor, mode: str, turned: bool = False) -> Tensor:
    """Return the scalar products of y with the windows of x, which is not shorter."""
    n, m = x.shape[0], y.shape[0]
    if mode not in ("full", "same", "valid"):
        raise shape_error(name, (), f"mode full, same or valid, got {mode!r}")
    if mode == "valid":
        return _windowed(x, y, n - m + 1)
    if mode == "full":
        before = after = m - 1
    else:
        half = m // 2 if not turned else (m - 1) // 2
        before, after = half, m - 1 - half
    attrs = {"low": (before,), "high": (after,), "interior": (0,), "value": 0}
    wide = named("pad", x, **attrs)
    return _windowed(wide, y, n + before + after - m + 1)


def _windowed(x: Tensor, y: Tensor, count: Dim) -> Tensor:
    m = y.shape[0]
    if isinstance(m, int) and m <= UNROLLED:
        terms = [sliced(x, [(k, count, 1)]) * getitem(y, k) for k in range(m)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total
    start = checked(position((count,), 0), count, wrap=False)
    return sum(taken(x, start, 0, window=m) * y, -1, dtype=x.dtype)


@widened
def polyval(p: ArrayLike, x: ArrayLike) -> Tensor:
    """Return the polynomial with coefficients `p`, the highest first, at `x`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polyval([1.0, 0.0, -1.0], [2.0, 3.0]), target="reference")()
    array([3., 8.], dtype=float32)
    """
    coefficients, value = promoted(p, x)
    y = value * 0
    for k in range(_count("polyval", coefficients)):
        y = y * value + getitem(coefficients, k)
    return y


def _count(name: str, p: Tensor) -> int:
    if p.ndim != 1 or not isinstance(p.shape[0], int):
        rule = "a static number of coefficients along one axis"
        raise shape_error(name, (p,), rule)
    return p.shape[0]


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """Return the sum of two polynomials.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polyadd([1, 2, 3], [1, 1]), target="reference")().tolist()
    [1, 3, 4]
    """
    x, y = _aligned("polyadd", a1, a2)
    return x + y


def polysub(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """Return the difference of two polynomials.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polysub([1, 2, 3], [1, 1]), target="reference")().tolist()
    [1, 1, 2]
    """
    x, y = _aligned("polysub", a1, a2)
    return x - y


def _aligned(name: str, a1: ArrayLike, a2: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return both with equally many coefficients, padded by 0 in front."""
    tensors = [ravel(t) for t in promoted(a1, a2)]
    counts = [_count(name, t) for t in tensors]
    most = max(counts)
    x, y = (
        named("pad", t, low=(most - n,), high=(0,), interior=(0,), value=0)
        for t, n in zip(tensors, counts, strict=True)
    )
    return x, y


def polymul(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """Return the product of two polynomials: the convolution of their coefficients.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polymul([1, 1], [1, -1]), target="reference")().tolist()
    [1, 0, -1]
    """
    return convolve(a1, a2)


def polyder(p: ArrayLike, m: int = 1) -> Tensor:
    """Return the coefficients of the `m`-th derivative of a polynomial in its variable.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polyder([1, 2, 3]), target="reference")().tolist()
    [2, 2]
    """
    y = as_tensor(p)
    if m < 0:
        raise shape_error("polyder", (), f"an order m >= 0, got {m}", "use polyint")
    for _ in range(m):
        n = _count("polyder", y)
        powers = np.arange(n - 1, 0, -1).astype(y.dtype)
        y = getitem(y, slice(0, max(n - 1, 0))) * frozen(powers)
    return y


def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Tensor:
    """Return the coefficients of the `m`-th integral, with constants `k`.

    `k` is one number or one for each order, the innermost first; 0 by default.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polyint([2.0, 2.0], k=3), target="reference")().tolist()
    [1.0, 2.0, 3.0]
    """
    (y,) = quotients(p)
    if m < 0:
        raise shape_error("polyint", (), f"an order m >= 0, got {m}", "use polyder")
    added = ravel(as_tensor(0 if k is None else k, y))
    if added.shape[0] not in (1, m) and m:
        rule = f"one constant, or one for each of {m} orders"
        raise shape_error("polyint", (added,), rule)
    for order in range(m):
        n = _count("polyint", y)
        powers = frozen(np.arange(n, 0, -1).astype(y.dtype))
        place = order if added.shape[0] == m else 0
        one = getitem(added, slice(place, place + 1))
        y = concatenate([y / powers, one])
    return y


@widened
def poly(seq_of_zeros: ArrayLike) -> Tensor:
    """Return the coefficients of the polynomial with the leading one 1 and these roots.

    Of a square matrix, which NumPy takes too, ShapeError: it needs eigenvalues.

    >>> import staticgrad as sg
    >>> sg.compile(sg.poly([1.0, -1.0]), target="reference")().tolist()
    [1.0, 0.0, -1.0]
    """
    (roots,) = quotients(seq_of_zeros)
    y: Tensor = frozen(np.ones(1, roots.dtype))
    for k in range(_count("poly", roots)):
        shifted = named("pad", y, low=(1,), high=(0,), interior=(0,), value=0)
        wide = named("pad", y, low=(0,), high=(1,), interior=(0,), value=0)
        y = wide - shifted * getitem(roots, k)
    return y


__all__ = [
    "convolve", "correlate", "poly", "polyadd", "polyder", "polyint", "polymul",
    "polysub", "polyval",
]  # fmt: skip
