"""Philox4x32-10 in NumPy: four random words from a counter and a key.

Ten rounds of two 32 x 32 -> 64 bit products whose halves are exchanged and xored with
the key, which grows by a constant each round. Every block is a function of its counter
alone, so any element can be computed, or computed again, on its own.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011, and the known answers of its library Random123.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> Words:
    """The four words of each block, on a new last axis.

    `counter` and `key` are uint32 words, lowest first, that broadcast.

    >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3, k0, k1 = (np.asarray(w).astype(np.uint64) for w in (*counter, *key))
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW
        c2, c3 = (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    words = np.broadcast_arrays(c0, c1, c2, c3)
    return np.stack(words, axis=-1).astype(np.uint32)


def stream(key: Words, count: int) -> Words:
    """The first `count` words that the four words of `key` draw, in order."""
    k0, k1, k2, k3 = key
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    words = philox((blocks & _LOW, blocks >> _SHIFT, k2, k3), (k0, k1))
    return words.reshape(-1)[:count]


def uniform(key: Words, shape: tuple[int, ...], bits: int) -> npt.NDArray[Any]:
    """Numbers in [0, 1): 24 bits of a word in float32, 53 bits of two in float64."""
    count = int(np.prod(shape, dtype=np.int64))
    if bits == 32:
        words = stream(key, count) >> np.uint32(8)
        return (words.astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
    pairs = stream(key, 2 * count).reshape(-1, 2)
    high, low = (pairs >> np.array([5, 6], np.uint32)).astype(np.float64).T
    numbers: npt.NDArray[Any] = (high * 2.0**26 + low) * 2.0**-53
    return numbers.reshape(shape)
