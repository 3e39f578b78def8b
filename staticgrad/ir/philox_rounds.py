"""The rounds of Philox4x32-10, over any arithmetic: of arrays, or of generated code.

A block is a function of its counter and key alone. Source: Salmon, Moraes, Dror, Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Word = TypeVar("Word")

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox_rounds(
    counter: Iterable[Word],
    key: Iterable[Word],
    multiply: Callable[[Word, int], tuple[Word, Word]],
    mix: Callable[[Word, Word, Word], Word],
    add: Callable[[Word, int], Word],
) -> tuple[Word, Word, Word, Word]:
    """The four words of a block.

    `multiply` gives the high and the low word of a product, `mix` the exclusive or of
    two words and one of the key, `add` a word of the next round's key.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = add(k0, WEYL[0]), add(k1, WEYL[1])
        (high0, low0), (high1, low1) = (
            multiply(c, m) for c, m in zip((c0, c2), MULTIPLIERS, strict=True)
        )
        c0, c1, c2, c3 = mix(high1, c1, k0), low1, mix(high0, c3, k1), low0
    return c0, c1, c2, c3
