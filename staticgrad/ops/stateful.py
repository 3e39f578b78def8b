"""Operations that depend on the run: updates of leaves, and train or eval mode."""

from __future__ import annotations

import numpy as np

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply, current_graph
from staticgrad.ir.node import Stored, Tensor
from staticgrad.ir.op import Bad, Mode, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import TensorType, broadcast_shapes
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, beside, promoted
from staticgrad.ops.rules import dtype_error, same_dtype, shape_error


def _one_shape(train: TensorType, evaluation: TensorType) -> Shape:
    if train.shape != evaluation.shape:
        raise ShapeError("branches of one shape", "broadcast one of them")
    return train.shape


def _by_mode_samples() -> list[Sample]:
    x = np.array([1.5, -2.0, 0.0])
    arrays = ((x, x + 1), (x.astype("float32"), x.astype("float32") * 2))
    return [
        *(Sample(pair) for pair in arrays),
        Sample((np.array([True]), np.array([False])), grad=False),
        Sample((np.zeros((0, 2)), np.ones((0, 2)))),
        Sample((np.array(1), np.array(2)), grad=False),
    ]


def _bad_by_mode() -> list[Bad]:
    x = np.zeros(3)
    return [
        Bad((x, np.zeros(2)), {}, ShapeError, "branches of one shape"),
        Bad((x, x.astype("float32")), {}, DTypeError, "one dtype"),
    ]


def _by_mode_vjp(
    g: Tensor, y: Tensor, train: Tensor, evaluation: Tensor
) -> tuple[Tensor, Tensor]:
    nothing = named("broadcast_to", as_tensor(0, g), shape=g.shape)
    return apply(BY_MODE, g, nothing), apply(BY_MODE, nothing, g)


BY_MODE = define(
    "by_mode",
    shape=_one_shape,
    dtype=same_dtype(),
    vjp=_by_mode_vjp,
    code=Mode(),
    numpy=lambda train, evaluation: evaluation,
    samples=_by_mode_samples,
    bad=_bad_by_mode,
)


def by_mode(train: ArrayLike, eval: ArrayLike) -> Tensor:
    """Select `train` in train mode, `eval` in eval mode; ``sg.compile(mode=)`` chooses.

    Both are promoted and broadcast to one type.

    >>> import staticgrad as sg
    >>> y = sg.by_mode(train=1.0, eval=[2.0, 3.0])
    >>> sg.compile(y, mode="train", target="reference")()
    array([1., 1.], dtype=float32)
    >>> sg.compile(y, target="reference")()
    array([2., 3.], dtype=float32)
    """
    pair = promoted(train, eval)
    try:
        shape = broadcast_shapes([t.shape for t in pair])
    except ShapeError as error:
        raise shape_error(
            "by_mode", pair, "shapes that broadcast", str(error)
        ) from None
    wide = (
        t if t.shape == shape else named("broadcast_to", t, shape=shape) for t in pair
    )
    return apply(BY_MODE, *wide)


def update(leaf: Stored, new: ArrayLike) -> tuple[Stored, Tensor]:
    """Update `leaf` to `new` at the end of each step of the open Graph.

    All reads see values from before the step. Python numbers take the leaf's dtype;
    otherwise shape and dtype must be those of the leaf. Returns the pair (leaf, new).

    Raises GraphError outside of a Graph, for a leaf that is not stored, and for a
    second update of one leaf; ShapeError and DTypeError for another type.

    >>> import staticgrad as sg
    >>> with sg.Graph() as graph:
    ...     total = sg.state(0.0)
    ...     leaf, value = sg.update(total, total + 1)
    >>> leaf is total, len(graph.updates)
    (True, 1)
    """
    graph = current_graph()
    if graph is None:
        raise GraphError(
            "update requires an open Graph, got none; write it inside `with "
            "sg.Graph():`, or pass (leaf, new) pairs to sg.compile(updates=)"
            f"{at(here())}"
        )
    if not isinstance(leaf, Stored):
        raise GraphError(
            f"update requires a parameter or a state, got {leaf!r}; "
            f"make one with sg.state(value){at(here())}"
        )
    value = beside(new, leaf)
    if value.shape != leaf.shape:
        raise shape_error("update", (leaf, value), "a new value of the leaf's shape")
    if value.dtype != leaf.dtype:
        advice = f"cast it with .astype({leaf.dtype.name!r})"
        raise dtype_error(
            "update", (leaf, value), "a new value of the leaf's dtype", advice
        )
    graph.add_update(leaf, value)
    return leaf, value


__all__ = ["by_mode", "update"]
