"""Shuffling and gathering of minibatches, inside the virtual machine.

A permutation is made by Fisher and Yates' shuffle from Philox4x32-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011): position i of epoch e draws
from counter (i, e) under the key `seed`, so an epoch's order can be made again at any
time. A bound is applied by a 64 x 64 -> 128 bit product, whose bias is below 2**-30 for
arrays of up to 2**34 rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from staticgrad.compiler.codegen.llvm.pointers import (
    copy_bytes,
    load_int64,
    multiply_high,
    store_int64,
)
from staticgrad.ir.philox_rounds import MULTIPLIERS, ROUNDS, WEYL

_MULTIPLIER_0, _MULTIPLIER_1 = map(np.uint64, MULTIPLIERS)
_WEYL_0, _WEYL_1 = map(np.uint64, WEYL)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(nogil=True)
def philox(low: np.uint64, high: np.uint64, key: np.uint64) -> np.uint64:
    """Return 64 bits of Philox4x32-10 for the counter (low, high) of two uint64."""
    c0, c1 = low & _LOW, low >> _32
    c2, c3 = high & _LOW, high >> _32
    k0, k1 = key & _LOW, key >> _32
    for _ in range(ROUNDS):
        first, second = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (second >> _32) ^ c1 ^ k0,
            second & _LOW,
            (first >> _32) ^ c3 ^ k1,
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0 | (c1 << _32)


@njit(nogil=True)
def shuffle(pc: int) -> None:
    """SHUFFLE: the permutation of an epoch, see the machine's README."""
    order, count = load_int64(pc, 1), load_int64(load_int64(pc, 2), 0)
    seed = np.uint64(load_int64(load_int64(pc, 3), 0))
    epoch = np.uint64(load_int64(load_int64(pc, 4), 0))
    for position in range(count):
        store_int64(order, position, position)
    for last in range(count - 1, 0, -1):
        bits = philox(np.uint64(last), epoch, seed)
        other = np.int64(multiply_high(bits, np.uint64(last + 1)))
        held = load_int64(order, last)
        store_int64(order, last, load_int64(order, other))
        store_int64(order, other, held)


@njit(nogil=True)
def gather_rows(pc: int) -> None:
    """GATHER: rows of a dataset into a batch, see the machine's README."""
    target, source = load_int64(pc, 1), load_int64(pc, 2)
    row_bytes, order = load_int64(pc, 3), load_int64(pc, 4)
    first = load_int64(load_int64(pc, 5), 0)
    rows = load_int64(load_int64(pc, 6), 0)
    for outer in range(load_int64(pc, 7)):
        block = source + outer * load_int64(pc, 8)
        for row in range(rows):
            picked = load_int64(order, first + row)
            copy_bytes(target, block + picked * row_bytes, row_bytes)
            target += row_bytes
