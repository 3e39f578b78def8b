"""The facts about a kind of operation that stages ask for, not for its name.

Each class of `code` (op.py) has one record of this class, whose fields every stage
reads that treats kinds differently. What takes a function per kind stands in one table
per stage, keyed by the class: RULES in batch_rules.py and in dependence.py, KERNELS in
lower.py. tests/ir/test_kinds.py holds them complete.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias

Reads: TypeAlias = Literal[
    "values", "memory", "strided", "matrix", "image", "dense", "whole"
]
Tangent: TypeAlias = Literal[
    "linear", "multilinear", "diagonal", "slopes", "transposed"
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of operation.

    `picture` names its colour in pictures; empty, the op's own name does. `tangent` is
    the rule of forward mode for ops without a jvp of their own (forward.py).

    `reads` says what is needed of each input, the last word for all that follow:
    "values", in any order or made in the loop that reads them; "memory", with any
    strides; "strided" memory of which strides express the result; a "matrix" for BLAS;
    an "image" for convolutions; "dense" memory, in C order without gaps; the "whole" of
    a buffer in C order.
    """

    picture: str
    tangent: Tangent = "transposed"
    _: KW_ONLY
    reads: tuple[Reads, ...] = ("values",)
    fused: bool = False  # shares loop nests with others
    aligned: bool = False  # inputs, keys aside, broadcast to the result
    is_view: bool = False  # input 0, read differently
    counted: bool = False  # an index or a size, which every loop knows
    accumulates: bool = False  # adds or multiplies in memory
    folded: bool = False  # a constant if its inputs are
    stays: bool = False  # neither moved by passes nor a constant
    fails: bool = False  # may stop a run
