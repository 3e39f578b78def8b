"""NumPy's protocols: NumPy functions called on Tensors build graphs.

``np.exp(x)`` is ``sg.exp(x)``: the table is filled by ops/__init__ with the public
functions, under NumPy's names. A function that is not there raises a TypeError that
says so and, where there is one, names what to use instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here

EQUIVALENTS: dict[str, Callable[..., Any]] = {
    "ndim": lambda a: a.ndim,
    "shape": lambda a: a.shape,
    "size": lambda a, axis=None: a.size if axis is None else a.shape[axis],
    "iscomplexobj": lambda x: False,
    "isrealobj": lambda x: True,
    "real_if_close": lambda a, tol=100: a,
}
"""NumPy's functions that work on a Tensor, those of np.linalg as "linalg.norm".

test_numpy_table.py calls each of them, and everything else in NumPy's namespaces.
"""

# Replacements of NumPy's functions without an equivalent of their name.
OTHER_NAMES = {
    "empty_like": "zeros_like",
    "histogram": "bincount(sg.digitize(x, bins), length=n), which has a static size",
    "histogram2d": "histogram of indices made by sg.ravel_multi_index",
    "histogramdd": "histogram of indices made by sg.ravel_multi_index",
    **dict.fromkeys(
        (
            "median",
            "percentile",
            "quantile",
            "nanmedian",
            "nanpercentile",
            "nanquantile",
        ),
        "sort, and its elements at the places that are wanted",
    ),
    **dict.fromkeys(("partition", "argpartition"), "sort, argsort or top_k"),
    "lexsort": "argsort of each key in turn, which is stable",
    "apply_over_axes": "sum and the like with a tuple axis=",
    "can_cast": "result_type, or compare x.dtype",
    "common_type": "result_type",
    "min_scalar_type": "result_type",
    "choose": "where, or take_along_axis",
    "diag_indices_from": "diag_indices(n)",
    "tril_indices_from": "tril_indices(n)",
    "triu_indices_from": "triu_indices(n)",
    "fill_diagonal": "where(sg.eye(n, dtype=bool), value, x)",
    **dict.fromkeys(
        (
            "linalg.cholesky",
            "linalg.cond",
            "linalg.det",
            "linalg.eig",
            "linalg.eigh",
            "linalg.eigvals",
            "linalg.eigvalsh",
            "linalg.inv",
            "linalg.lstsq",
            "linalg.matrix_rank",
            "linalg.pinv",
            "linalg.qr",
            "linalg.slogdet",
            "linalg.solve",
            "linalg.svd",
        ),
        "custom_op(kind='array') of a function that calls NumPy's: Numba compiles it",
    ),
    "fft.fftshift": "roll",
    "fft.ifftshift": "roll",
    "polydiv": "polyval of each, and divide",
    "save": "compile, and np.save what the executable returns",
    "savetxt": "compile, and np.savetxt what the executable returns",
    "savez": "compile, and np.savez what the executable returns",
    "savez_compressed": "compile, and np.savez what the executable returns",
    "setdiff1d": "isin(x, y, invert=True), a mask",
    "intersect1d": "isin(x, y), a mask",
    "packbits": "left_shift and sum",
    "unpackbits": "right_shift and bitwise_and",
    "piecewise": "select(conditions, choices)",
    "resize": "tile and reshape",
    "apply_along_axis": "vmap",
    # results of data-dependent size
    "argwhere": "where(condition, x, other), which keeps the shape",
    "compress": "where(condition, x, other), which keeps the shape",
    "extract": "where(condition, x, other), which keeps the shape",
    "flatnonzero": "where(condition, x, other), which keeps the shape",
    "nonzero": "where(condition, x, other), which keeps the shape",
    **dict.fromkeys(
        ("unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
        "bincount(x, length=n), which has a static size",
    ),
    # in-place functions
    "copyto": "where(condition, new, old)",
    "place": "where(condition, new, old)",
    "put": "ravel(x).at[indices].set(values)",
    "putmask": "where(condition, new, old)",
}


FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""All public functions; a ufunc of scipy.special is the one of its name."""

# But for these. scipy.special.round makes floats of integers.
SPECIAL_NAMES = {"expit": "sigmoid", "psi": "digamma", "round": ""}


def fill(functions: Mapping[str, Callable[..., Any]], prefix: str = "") -> None:
    """Take those of `functions` whose names NumPy has too.

    `prefix` is "linalg." for those that NumPy has in np.linalg.
    """
    space, own = np.linalg if prefix else np, REDUCTIONS.values()
    known = {n: f for n, f in functions.items() if hasattr(space, n) or n in own}
    EQUIVALENTS.update({prefix + name: function for name, function in known.items()})
    if not prefix:
        FUNCTIONS.update(functions)


def array_ufunc(
    self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
) -> Any:
    """Apply a NumPy ufunc to Tensors; `method` is "__call__", "reduce" or another."""
    name = ufunc.__name__
    if getattr(np, name, None) is not ufunc:
        return _foreign(ufunc, name, method, inputs, options)
    if method == "outer":
        return _outer(name, *inputs, **options)
    if method == "reduce":
        return _reduce(name, *inputs, **options)
    if method == "accumulate":
        return _accumulate(name, *inputs, **options)
    if method != "__call__":
        raise _unsupported(f"{name}.{method}", None)
    _no_options(name, options)
    return _equivalent(name)(*inputs)


def _equivalent(name: str) -> Callable[..., Any]:
    """Return the function for NumPy's ufunc `name`; TypeError if there is none."""
    function = EQUIVALENTS.get(name)
    if function is None:
        raise _unsupported(name, OTHER_NAMES.get(name))
    return function


def _outer(name: str, x: Any, y: Any, **options: Any) -> Any:
    """Apply a ufunc to every element of `x` with every one of `y`."""
    _no_options(f"{name}.outer", options)
    column = EQUIVALENTS["reshape"](x, (*np.shape(x), *(1,) * np.ndim(y)))
    return _equivalent(name)(column, y)


def _foreign(
    ufunc: np.ufunc,
    name: str,
    method: str,
    inputs: tuple[Any, ...],
    options: Mapping[str, Any],
) -> Any:
    """Apply a ufunc that is not NumPy's: one of scipy.special, or raise."""
    special = sys.modules.get("scipy.special")
    function = FUNCTIONS.get(SPECIAL_NAMES.get(name, name))
    is_special = getattr(special, name, None) is ufunc
    if function is not None and is_special and method == "__call__":
        _no_options(name, options)
        return function(*inputs)
    raise TypeError(
        f"the ufunc {name} requires NumPy arrays, got a Tensor; make an operation of "
        f"its function by sg.custom_op(kind='scalar', ...){at(here())}"
    )


def array_function(
    self: Tensor,
    function: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Apply any other NumPy function to Tensors."""
    module = getattr(function, "__module__", "numpy").removeprefix("numpy")
    name = f"{module}.{function.__name__}".removeprefix(".")
    found = EQUIVALENTS.get(name)
    if found is None:
        raise _unsupported(name, OTHER_NAMES.get(name))
    try:
        return found(*args, **kwargs)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        text = str(error).split("() ")[-1]
        raise TypeError(f"np.{name} of a Tensor {text}{at(here())}") from None


REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
    "logaddexp": "logsumexp",
}


def _accumulate(name: str, x: Any, axis: int = 0, **options: Any) -> Any:
    function = EQUIVALENTS.get(f"cum{REDUCTIONS.get(name)}")
    if function is None:
        raise _unsupported(f"{name}.accumulate", None)
    dtype = options.pop("dtype", None)
    _no_options(f"{name}.accumulate", options)
    return function(x, axis=axis, dtype=dtype)


def _reduce(name: str, x: Any, axis: Any = 0, **options: Any) -> Any:
    if name not in REDUCTIONS:
        raise _unsupported(f"{name}.reduce", None)
    keepdims = bool(options.pop("keepdims", False))
    dtype = options.pop("dtype", None)
    _no_options(f"{name}.reduce", options)
    typed = {} if dtype is None else {"dtype": dtype}
    return EQUIVALENTS[REDUCTIONS[name]](x, axis=axis, keepdims=keepdims, **typed)


def _no_options(name: str, options: Mapping[str, Any]) -> None:
    given = [key for key, value in options.items() if value is not None]
    if not given:
        return
    advice = {"out": "Tensors never change", "where": "choose with sg.where"}
    hint = advice.get(given[0], "cast with .astype")
    raise TypeError(
        f"np.{name} of a Tensor requires no {given[0]}=, got one; {hint}{at(here())}"
    )


def missing(name: str, prefix: str = "") -> str:
    """Return the text of the AttributeError for an unknown name.

    `prefix` is that of `fill`.
    """
    module = f"staticgrad.{prefix}".rstrip(".")
    text = f"module {module!r} has no attribute {name!r}"
    advice = OTHER_NAMES.get(prefix + name)
    return text if advice is None else f"{text}; use sg.{advice}{at(here())}"


def _unsupported(name: str, instead: str | None) -> TypeError:
    advice = "staticgrad has no equivalent" if instead is None else f"use sg.{instead}"
    return TypeError(
        f"np.{name} requires NumPy arrays, got a Tensor; {advice}{at(here())}"
    )
