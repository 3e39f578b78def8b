"""Casts, copies, and stop_gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Elementwise, Sample, define
from staticgrad.ir.types import DType, TensorType, as_dtype, is_float
from staticgrad.ops.rules import elementwise, quiet, same_shape


def _cast_samples() -> list[Sample]:
    floats = np.array([0.0, -0.0, 1.5, -1.5, 2.5, 100.25, -7.999])
    special = np.array([np.nan, np.inf, -np.inf, 1e300, 1e-300])
    whole = np.array([-3, 0, 1, 127], np.int8)
    return [
        *(Sample((floats,), {"dtype": np.dtype(d)}) for d in ("float32", "float64")),
        *(
            Sample((floats.astype("float32"),), {"dtype": np.dtype(d)}, grad=False)
            for d in ("float64", "int8", "int32", "int64", "bool")
        ),
        Sample((special,), {"dtype": np.dtype("float32")}, grad=False),
        Sample((special[:3],), {"dtype": np.dtype("bool")}, grad=False),
        *(
            Sample((whole,), {"dtype": np.dtype(d)}, grad=False)
            for d in ("int64", "float32", "float64", "uint8", "bool")
        ),
        Sample((np.array([2**63 - 1, -(2**63), 300]),), {"dtype": np.dtype("int8")}),
        Sample((np.array([True, False]),), {"dtype": np.dtype("float32")}),
        Sample((np.zeros((0, 2)),), {"dtype": np.dtype("float32")}),
        Sample((np.array(1.25),), {"dtype": np.dtype("float32")}),
    ]


def _bad_cast() -> list[Bad]:
    wide = {"dtype": np.dtype("complex64")}
    return [Bad((np.zeros(2),), wide, DTypeError, "cast requires one of")]


def _cast_dtype(x: TensorType, *, dtype: DType) -> DType:
    try:
        return as_dtype(dtype)
    except DTypeError as error:
        raise DTypeError(str(error).removeprefix("dtype requires ")) from None


CAST = define(
    "cast",
    shape=same_shape,
    dtype=_cast_dtype,
    vjp=lambda g, y, x, dtype: (cast(g, x.dtype) if is_float(x.dtype) else None,),
    jvp="linear",
    code=Elementwise("{S}({0})"),
    numpy=quiet(lambda x, dtype: x.astype(dtype)),
    samples=_cast_samples,
    bad=_bad_cast,
)


def _copy_samples() -> list[Sample]:
    return [
        Sample((np.array([1.0, -0.0, 3.5]),)),
        Sample((np.array([np.nan, np.inf, -np.inf], np.float32),), grad=False),
        Sample((np.arange(6).reshape(2, 3),)),
        Sample((np.array([True, False]),)),
        Sample((np.zeros((0, 3)),)),
        Sample((np.array(2.0),)),
    ]


COPY = elementwise(
    "copy",
    "biuf",
    lambda x: x.copy(),
    vjp=lambda g, y, x: (g,),
    samples=_copy_samples,
    template="{0}",
    inputs=1,
)

STOP_GRADIENT = elementwise(
    "stop_gradient",
    "biuf",
    lambda x: x.copy(),
    samples=lambda: [Sample(s.args, s.attrs, grad=False) for s in _copy_samples()],
    template="{0}",
    inputs=1,
)


def cast(x: Tensor, dtype: npt.DTypeLike) -> Tensor:
    """Return `x` cast to `dtype`; `x` itself if it has that dtype."""
    found: Any = np.dtype(dtype)
    return x if x.dtype == found else apply(CAST, x, dtype=found)
