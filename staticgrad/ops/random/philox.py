"""Philox4x32-10 in NumPy: four random words from a counter and a key.

Ten rounds (philox_rounds.py) of two 32 x 32 -> 64 bit products whose halves are
exchanged and xored with the key, which grows by a constant each round. Every block is a
function of its counter alone, so any element can be computed, or computed again, on its
own. The known answers are those of the authors' library Random123.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.philox_rounds import philox_rounds

Words = npt.NDArray[np.uint32]
Longs = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> Words:
    """Return the four words of each block, on a new last axis.

    `counter` and `key` are uint32 words, lowest first, that broadcast.

    >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    wide = [np.asarray(word).astype(np.uint64) for word in (*counter, *key)]
    block = philox_rounds(
        wide[:4], wide[4:], _multiply, lambda x, y, k: x ^ y ^ k, _add
    )
    return np.stack(np.broadcast_arrays(*block), axis=-1).astype(np.uint32)


def _multiply(x: Longs, constant: int) -> tuple[Longs, Longs]:
    product = x * np.uint64(constant)
    return product >> _SHIFT, product & _LOW


def _add(x: Longs, constant: int) -> Longs:
    return (x + np.uint64(constant)) & _LOW


def stream(key: Words, count: int) -> Words:
    """Return the first `count` words that the four words of `key` draw, in order."""
    k0, k1, k2, k3 = key
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    words = philox((blocks & _LOW, blocks >> _SHIFT, k2, k3), (k0, k1))
    return words.reshape(-1)[:count]


def words(key: Words, shape: tuple[int, ...], bits: int) -> npt.NDArray[Any]:
    """Return words of 32 bits, or of 64 from two of them, the first one low."""
    count = int(np.prod(shape, dtype=np.int64))
    if bits == 32:
        return stream(key, count).reshape(shape)
    pairs = stream(key, 2 * count).reshape(-1, 2).astype(np.uint64)
    joined: npt.NDArray[Any] = pairs[:, 0] | pairs[:, 1] << _SHIFT
    return joined.reshape(shape)


def uniform(key: Words, shape: tuple[int, ...], bits: int) -> npt.NDArray[Any]:
    """Draw numbers in [0, 1): 24 bits in float32, 53 bits in float64."""
    count = int(np.prod(shape, dtype=np.int64))
    if bits == 32:
        words = stream(key, count) >> np.uint32(8)
        return (words.astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
    return fractions(stream(key, 2 * count).reshape(-1, 2)).reshape(shape)


def fractions(pairs: Words) -> npt.NDArray[Any]:
    """Return numbers of 53 bits in [0, 1), one from the two words on the last axis."""
    parts = (pairs >> np.array([5, 6], np.uint32)).astype(np.float64)
    numbers: npt.NDArray[Any] = (parts[..., 0] * 2.0**26 + parts[..., 1]) * 2.0**-53
    return numbers


def normal(key: Words, shape: tuple[int, ...], bits: int) -> npt.NDArray[Any]:
    """Draw normal numbers by Box and Muller: sqrt(-2 log u) times cos and sin.

    u is the first word plus 1/2 over 2^32, or in float64 one minus a uniform number;
    the second is the angle, of which whole quarter turns are taken off exactly.
    """
    count = int(np.prod(shape, dtype=np.int64))
    kind = np.dtype(f"float{bits}").type
    first, second = words(key, (-(-count // 2), 2), bits).T
    if bits == 32:
        u = (first.astype(kind) + kind(0.5)) * kind(2.0**-32)
    else:
        u = 1 - uniform(key, (2 * len(first),), bits)[0::2]
    one = second.dtype.type(1)
    quadrant = (second + (one << (bits - 3))) >> (bits - 2)
    rest = (second - (quadrant << (bits - 2))).astype(f"int{bits}")
    angle = rest.astype(kind) * kind(2 * np.pi * 2.0**-bits)
    radius = np.sqrt(np.log(u) * kind(-2))
    turned = np.stack([_turned(angle, quadrant + one), _turned(angle, quadrant)])
    drawn: npt.NDArray[Any] = (radius * turned).T
    return drawn.reshape(-1)[:count].reshape(shape)


def _turned(angle: npt.NDArray[Any], quadrant: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute sin(angle + quadrant * pi/2)."""
    values = np.where(quadrant & 1, np.cos(angle), np.sin(angle))
    return np.asarray(np.where(quadrant & 2, -values, values))


def normal_of(u: npt.NDArray[Any], turn: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return float64 normal numbers from u in (0, 1] and 32-bit angles, by cosine."""
    one = np.uint32(1)
    quadrant = (turn + (one << np.uint32(29))) >> np.uint32(30)
    rest = (turn - (quadrant << np.uint32(30))).astype(np.int32)
    angle = rest * (2 * np.pi * 2.0**-32)
    radius = np.sqrt(np.log(u) * -2)
    return np.asarray(radius * _turned(angle, quadrant + one))
