"""Winograd matrices of windows of three elements along one axis.

    y = made (kernels w * image x)

for elements y of the result, the window w and the elements x that are read. Two axes
take two transforms: rows from the left, columns, transposed, from the right. The
gradient of the window is kernels^T (image x * made^T y').

Matrices are given by factors, the first applied first, because sums that several rows
share are then added once.

Sources: Lavin and Gray, Fast algorithms for convolutional neural networks (2016),
arXiv:1509.09308; Barabasz, Anderson, Soodhalter and Gregg, Error analysis and improving
the accuracy of Winograd convolution (2020), arXiv:1803.10986, for the points of FOUR;
with stride 2 the even elements meet the outer two of the window, three products for
two results, and the odd ones the middle one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

Matrix: TypeAlias = Sequence[Sequence[float]]
Factors: TypeAlias = tuple[Matrix, ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """Matrices of one axis; `step` elements are from tile to tile of the image."""

    image: Factors
    kernels: Factors
    made: Factors
    step: int

    @property
    def read(self) -> int:
        """Number of image elements in a tile."""
        return len(self.image[0][0])

    @property
    def products(self) -> int:
        """Number of elements of a transformed tile."""
        return len(self.image[-1])

    @property
    def count(self) -> int:
        """Number of result elements in a tile."""
        return len(self.made[-1])


def transposed(factors: Factors) -> Factors:
    """Return the factors of the transposed matrix."""
    return tuple(tuple(zip(*matrix, strict=True)) for matrix in factors[::-1])


def _backwards(transform: Transform) -> Transform:
    """Return the transform of the image's gradient, which meets the window reversed."""
    (matrix,) = transform.kernels
    return replace(transform, kernels=(tuple(tuple(row[::-1]) for row in matrix),))


TWO = Transform(
    image=(((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),),
    kernels=(((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),),
    made=(((1, 1, 1, 0), (0, 1, -1, -1)),),
    step=2,
)
"""Two elements by four products instead of six; the error is that of the sums."""

FOUR = Transform(
    image=(
        (
            (1, 0, -1, 0, 0, 0),
            (0, -1, 0, 1, 0, 0),
            (0, 0, -1, 0, 1, 0),
            (0, 0, 1, 1, 0, 0),
            (0, 0, -1, 1, 0, 0),
            (0, 0, 0, -1, 0, 1),
        ),
        (
            (1, 1.5, 1, 0, 0, 0),
            (0, 1, 1, 1.5, 0, 0),
            (0, -1, 1, 0, 1.5, 0),
            (0, 2, 1, 0, 0, 0),
            (0, -0.5, 1, 0, 0, 0),
            (0, -1, 1.5, 0, 0, 1),
        ),
    ),
    kernels=(
        (
            (1, 0, 0),
            (1 / 3, 1 / 3, 1 / 3),
            (-1 / 3, 1 / 3, -1 / 3),
            (-16 / 15, -8 / 15, -4 / 15),
            (1 / 15, -2 / 15, 4 / 15),
            (0, 0, 1),
        ),
    ),
    made=(
        (
            (1, 0, 0, 0, 0, 0),
            (0, 1, 1, 0, 0, 0),
            (0, 1, -1, 0, 0, 0),
            (0, 0, 0, 1, 0, 0),
            (0, 0, 0, 0, 1, 0),
            (0, 0, 0, 0, 0, 1),
        ),
        (
            (1, 1, 0, 1, 1, 0),
            (0, 0, 1, 0.5, -2, 0),
            (0, 1, 0, 0.25, 4, 0),
            (0, 0, 1, 0.125, -8, 1),
        ),
    ),
    step=4,
)
"""Four elements by six products instead of twelve, with the points 0, 1, -1, 1/2, -2.

Of one axis only, the other one TWO, the error is up to three times that of TWO alone.
"""

APART = Transform(
    image=(
        (
            (1, 0, -1, 0, 0),
            (0, 0, 1, 0, 0),
            (0, 0, -1, 0, 1),
            (0, 1, 0, 0, 0),
            (0, 0, 0, 1, 0),
        ),
    ),
    kernels=(((1, 0, 0), (1, 0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 0)),),
    made=(((1, 1, 0, 1, 0), (0, 1, 1, 0, 1)),),
    step=4,
)
"""Two elements of windows two apart by five products instead of six."""

_BACK = (
    ((1, -1, 0), (0, 1, 0), (0, -1, 1), (1, 0, 0), (0, 1, 0)),
    ((1, -1, 0), (0, 1, 0), (0, -1, 1), (0, 1, 0), (0, 0, 1)),
)
_BACK_KERNELS = ((0, 0, 1), (1, 0, 1), (1, 0, 0), (0, 1, 0), (0, 1, 0))

APART_BACK_ODD = Transform(
    image=(_BACK[0],),
    kernels=(_BACK_KERNELS,),
    made=(((0, 0, 0, 1, 0), (1, 1, 0, 0, 0), (0, 0, 0, 0, 1), (0, 1, 1, 0, 0)),),
    step=2,
)
"""The gradient of the image under APART, where the first element meets the middle."""

APART_BACK_EVEN = Transform(
    image=(_BACK[1],),
    kernels=(_BACK_KERNELS,),
    made=(((1, 1, 0, 0, 0), (0, 0, 0, 1, 0), (0, 1, 1, 0, 0), (0, 0, 0, 0, 1)),),
    step=2,
)
"""As APART_BACK_ODD, where the first element meets the outer two."""

TRANSFORMS = {
    "two": TWO,
    "two back": _backwards(TWO),
    "four": FOUR,
    "four back": _backwards(FOUR),
    "apart": APART,
    "apart back odd": APART_BACK_ODD,
    "apart back even": APART_BACK_EVEN,
}
"""By the names that schemes use."""
