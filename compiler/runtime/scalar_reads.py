"""Scalars written by kernels, read by the machine: sums, means, tests.

A training loop adds up losses and metrics over an epoch in float64, whatever dtype they
have.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from staticgrad.compiler.codegen.llvm.pointers import (
    load_bfloat16,
    load_float16,
    load_float32,
    load_float64,
    load_int8,
    load_int32,
    load_int64,
    store_float64,
)

FLOAT32, FLOAT64, INT64, INT32, INT8, FLOAT16, BFLOAT16 = range(7)

CODES = {
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "float32": FLOAT32,
    "float64": FLOAT64,
    "int64": INT64,
    "uint64": INT64,
    "int32": INT32,
    "uint32": INT32,
    "int8": INT8,
    "uint8": INT8,
    "bool": INT8,
}
"""Codes of a scalar's dtype in instructions."""


@njit(nogil=True)
def scalar(address: int, kind: int) -> float:
    """Load the scalar at `address` of the dtype with the code `kind`."""
    if kind == FLOAT32:
        return np.float64(load_float32(address, 0))
    if kind == FLOAT64:
        return load_float64(address, 0)
    if kind == INT64:
        return np.float64(load_int64(address, 0))
    if kind == INT32:
        return np.float64(load_int32(address, 0))
    if kind == FLOAT16:
        return np.float64(load_float16(address, 0))
    if kind == BFLOAT16:
        return np.float64(load_bfloat16(address, 0))
    return np.float64(load_int8(address, 0))


@njit(nogil=True)
def record(pc: int) -> None:
    """RECORD: add scalar * weight to the accumulator, see the machine's README."""
    weight = np.float64(load_int64(load_int64(pc, 4), 0))
    value = scalar(load_int64(pc, 2), load_int64(pc, 3))
    accumulator = load_int64(pc, 1)
    store_float64(accumulator, 0, load_float64(accumulator, 0) + value * weight)


@njit(nogil=True)
def mean(pc: int) -> None:
    """MEAN: write accumulator / weight to array[index]."""
    index = load_int64(load_int64(pc, 2), 0)
    weight = np.float64(load_int64(load_int64(pc, 4), 0))
    total = load_float64(load_int64(pc, 3), 0)
    found = total / weight if weight != 0.0 else np.nan
    store_float64(load_int64(pc, 1), index, found)


@njit(nogil=True)
def is_finite(pc: int) -> bool:
    """Whether the scalar that JUMP_UNLESS_FINITE reads is finite."""
    return np.isfinite(scalar(load_int64(pc, 1), load_int64(pc, 2)))
