"""Checks of derivatives against finite differences, for users and for our own tests.

``gradcheck`` and ``gradgradcheck`` compare gradients with differences (differences.py),
``check_jvp`` forward mode with differences and with reverse mode, ``check_vmap`` a
batched function with a loop (comparisons.py).

Source: the gradcheck of PyTorch, from which eps and the tolerances are.
Weakness: at a kink the two sides of a difference disagree; choose points away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op, Sample
from staticgrad.ir.types import FLOAT64, is_float
from staticgrad.testing.comparisons import (
    Point,
    forward_differences,
    is_near,
    outputs_of,
    transpose_gap,
)
from staticgrad.testing.differences import (
    Array,
    CheckSettings,
    Mode,
    check_dtypes,
    compare,
    derivative,
    of_function,
    report,
    scalar_of,
)
from staticgrad.vectorize.mapping import vmap

EPS = 1e-6  # the error of a central difference, eps ** 2 + 1e-16 / eps, is about 1e-10
ATOL = 1e-4
RTOL = 1e-3
VMAP_ATOL = 1e-6  # the same arithmetic in another order, float32 included
VMAP_RTOL = 1e-5


def gradcheck(
    function: Callable[..., Any] | Tensor,
    *args: npt.ArrayLike,
    wrt: Any = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    mode: Mode = "eval",
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    directions: int | None = None,
    simplify: bool = True,
    seed: int = 0,
) -> bool:
    """Compare the gradient of a function, or of a tensor, with finite differences.

    ``gradcheck(f, *arrays)`` builds ``f`` on inputs of the arrays' types and checks the
    gradient with respect to each float one. ``gradcheck(y, wrt=w, inputs={...})``
    checks that of the tensor y with respect to leaves: inputs and parameters. The
    arrays checked are float64. With `directions` it looks along that many random
    directions instead of at each element. True, or an AssertionError that lists the
    differences.

    >>> import numpy as np
    >>> import staticgrad as sg
    >>> sg.testing.gradcheck(lambda x: sg.sum(x ** 3), np.array([2.0, 3.0]))
    True
    """
    scalar = scalar_of(function, args, wrt, inputs, mode, seed)
    compare(scalar, CheckSettings(eps, atol, rtol, directions, simplify, seed))
    return True


def gradgradcheck(
    function: Callable[..., Any] | Tensor,
    *args: npt.ArrayLike,
    wrt: Any = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    mode: Mode = "eval",
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    directions: int | None = 2,
    simplify: bool = True,
    seed: int = 0,
) -> bool:
    """Compare second derivatives with finite differences of the first.

    The arguments are those of gradcheck. The gradient, weighted at random, is a scalar
    whose own gradient is checked, along random directions by default.

    >>> import numpy as np
    >>> import staticgrad as sg
    >>> sg.testing.gradgradcheck(lambda x: sg.sum(x ** 3), np.array([2.0, 3.0]))
    True
    """
    scalar = scalar_of(function, args, wrt, inputs, mode, seed)
    settings = CheckSettings(eps, atol, rtol, directions, simplify, seed)
    compare(derivative(scalar, settings), settings)
    return True


def check_jvp(
    function: Callable[..., Any],
    *args: npt.ArrayLike,
    mode: Mode = "eval",
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    simplify: bool = True,
    seed: int = 0,
) -> bool:
    """Compare forward mode with finite differences and with reverse mode.

    ``check_jvp(f, *arrays)`` builds f on inputs of the arrays' types, of which the
    float ones are float64. The tangents of its float outputs along a random direction v
    are compared with differences, and ``w . (J v)`` with ``(w J) . v``. True, or an
    AssertionError that lists the differences.

    >>> import numpy as np
    >>> import staticgrad as sg
    >>> sg.testing.check_jvp(lambda x: sg.exp(x) * x, np.array([2.0, 3.0]))
    True
    """
    leaves, outputs, values = of_function(function, args)
    check_dtypes("check_jvp", leaves)
    floats = [y for y in outputs if is_float(y.dtype)]
    settings = CheckSettings(eps, atol, rtol, None, simplify, seed)
    point = Point(leaves, floats, values, mode)
    found = forward_differences(point, settings) + transpose_gap(point, settings)
    report("check_jvp", "tangents equal to differences and to reverse mode", found)
    return True


def check_vmap(
    function: Callable[..., Any],
    *args: npt.ArrayLike,
    in_axes: Any = 0,
    size: str | None = None,
    mode: Mode = "eval",
    atol: float = VMAP_ATOL,
    rtol: float = VMAP_RTOL,
) -> bool:
    """Compare ``vmap(function, in_axes)`` of the arrays with a loop over the examples.

    With `size` the number of examples is a symbolic size of that name. True, or an
    AssertionError that says where the two differ.

    >>> import numpy as np
    >>> import staticgrad as sg
    >>> sg.testing.check_vmap(lambda x: x / sg.sum(x), np.ones((5, 3)))
    True
    """
    arrays = [np.asarray(arg) for arg in args]
    axes = [in_axes] * len(arrays) if not isinstance(in_axes, tuple) else list(in_axes)
    whole = outputs_of(vmap(function, tuple(axes)), arrays, mode, axes, size)
    pairs = [(a, k) for a, k in zip(arrays, axes, strict=True) if k is not None]
    rows = []
    for number in range(pairs[0][0].shape[pairs[0][1]]):
        one = [
            a if k is None else np.asarray(np.take(a, number, axis=k))
            for a, k in zip(arrays, axes, strict=True)
        ]
        rows.append(outputs_of(function, one, mode))
    found = []
    for place, results in enumerate(zip(*rows, strict=True)):
        want = np.stack(results)
        if not is_near(whole[place], want, atol, rtol):
            found.append(f"output {place}: {whole[place]!r}, {want!r} in the loop")
    report("check_vmap", "results equal to those of a loop", found)
    return True


def check_op(op: Op, sample: Sample, order: int = 2) -> None:
    """Check the derivatives of `op` at `sample` in float64, up to `order`."""
    attrs = {name: _widened(value) for name, value in sample.attrs.items()}

    def function(*inputs: Tensor) -> list[Tensor]:
        return list(apply_multi(op, *inputs, **attrs))

    args = [_float64(np.asarray(arg)) for arg in sample.args]
    if not any(is_float(arg.dtype) for arg in args):
        return
    gradcheck(function, *args, simplify=False)
    if order > 1:
        gradgradcheck(function, *args, simplify=False)


def _widened(value: Any) -> Any:
    return FLOAT64 if isinstance(value, np.dtype) and is_float(value) else value


def _float64(array: Array) -> Array:
    return array.astype(FLOAT64) if is_float(array.dtype) else array
