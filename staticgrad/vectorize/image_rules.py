"""Convolutions over a leading axis of n examples.

Images of all examples that share their kernels are one longer batch. Kernels of all
examples that share their images are more filters. Where both differ, the examples are
groups: their channels and filters lie beside each other.

Weakness: with a symbolic number of examples the groups are too many to be known, and
the convolution is taken apart (unroll_windows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Convolution
from staticgrad.ir.size import Dim
from staticgrad.ops.movement.views import reshaped, transposed
from staticgrad.vectorize.example_axis import with_example_axis


def convolution(
    node: Node, inputs: Sequence[Tensor | None], n: Dim
) -> Sequence[Tensor]:
    """Batch a Convolution; `inputs` are None where they are the same for all."""
    first, second = inputs
    code = node.op.code
    assert isinstance(code, Convolution)
    if first is not None and second is None and code.part != "weight":
        return (_as_one_batch(node, first, n),)
    if first is None and second is not None and _adds_filters(code, node.attrs):
        found = apply(node.op, node.inputs[0], _beside(second), **node.attrs)
        return (_apart(found, n, node.types[0].shape[3]),)
    both = [
        with_example_axis(*pair, n) for pair in zip(node.inputs, inputs, strict=True)
    ]
    return (_as_groups(node, both[0], both[1], n),)


def _adds_filters(code: Convolution, attrs: Any) -> bool:
    return code.part == "result" and attrs["groups"] == 1


def _as_one_batch(node: Node, images: Tensor, n: Dim) -> Tensor:
    count = images.shape[1]
    joined = reshaped(images, (n * count, *images.shape[2:]))
    found = apply(node.op, joined, node.inputs[1], **node.attrs)
    return reshaped(found, (n, count, *found.shape[1:]))


def _as_groups(node: Node, x: Tensor, y: Tensor, n: Dim) -> Tensor:
    attrs = {**node.attrs, "groups": node.attrs["groups"] * n}
    found = apply(node.op, _beside(x), _beside(y), **attrs)
    return _apart(found, n, node.types[0].shape[3])


def _beside(x: Tensor) -> Tensor:
    """Reshape (n, a, b, c, d) to (a, b, c, n * d)."""
    moved = transposed(x, (1, 2, 3, 0, 4))
    return reshaped(moved, (*x.shape[1:4], x.shape[0] * x.shape[4]))


def _apart(x: Tensor, n: Dim, last: Dim) -> Tensor:
    """Reshape (a, b, c, n * d) to (n, a, b, c, d)."""
    return transposed(reshaped(x, (*x.shape[:3], n, last)), (3, 0, 1, 2, 4))
