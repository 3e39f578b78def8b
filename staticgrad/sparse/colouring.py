"""Colourings: which columns of a sparse matrix one product can find together.

Columns without a common row share a colour (Curtis, Powell and Reid): one product with
the sum of their unit vectors shows the elements of all of them. For a symmetric matrix
a star colouring is enough, which takes fewer colours: two neighbours differ, and no
path of four vertices has two colours; then each element is alone in its place in the
product for its column or in that for its row.

Sources: Curtis, Powell and Reid, "On the estimation of sparse Jacobian matrices" (1974)
https://doi.org/10.1093/imamat/13.1.117; Gebremedhin, Manne and Pothen, "What color is
your Jacobian?" (2005), https://doi.org/10.1137/S0036144504444711, algorithm 4.1.
Weakness: greedy, in the order of the columns: banded matrices need as many colours as
they have diagonals, others may get more than they need.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from staticgrad.sparse.patterns import Pattern

Colours = npt.NDArray[np.int64]


def column_colours(pattern: Pattern) -> Colours:
    """Return a colour for each column; columns of one colour have no common row."""
    count = pattern.columns
    if pattern.widest == count:  # a full row: every column has a colour of its own
        return np.arange(count, dtype=np.int64)
    rows, columns = pattern.lists(), pattern.transposed().lists()
    colours = [-1] * count
    for column in range(count):
        near = {colours[other] for row in columns[column] for other in rows[row]}
        colours[column] = _first_free(near)
    return np.array(colours, np.int64)


def star_colours(pattern: Pattern) -> Colours:
    """Return a colour per column of a symmetric pattern; see the module docstring."""
    count = pattern.columns
    if pattern.widest == count:
        return np.arange(count, dtype=np.int64)
    near = [
        [other for other in row if other != vertex]
        for vertex, row in enumerate(pattern.lists())
    ]
    colours = [-1] * count
    for vertex in range(count):
        colours[vertex] = _first_free(_taken(vertex, near, colours))
    return np.array(colours, np.int64)


def _taken(vertex: int, near: list[list[int]], colours: list[int]) -> set[int]:
    """Return the colours that `vertex` cannot have."""
    taken: set[int] = set()
    for middle in near[vertex]:
        own = colours[middle]
        taken.add(own)
        for far in near[middle]:
            if far == vertex or colours[far] == -1 or colours[far] in taken:
                continue
            if own == -1 or _repeats(far, middle, near, colours):
                taken.add(colours[far])
    return taken


def _repeats(far: int, middle: int, near: list[list[int]], colours: list[int]) -> bool:
    """Whether `far` has another neighbour of the colour of `middle`."""
    own = colours[middle]
    return any(colours[last] == own and last != middle for last in near[far])


def _first_free(taken: set[int]) -> int:
    colour = 0
    while colour in taken:
        colour += 1
    return colour
