"""cond and switch: only the branch that is taken runs, and only it has a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from staticgrad.control.bodies import Traced, close, matching, traced
from staticgrad.control.carries import settled
from staticgrad.control.records import SWITCH
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import BOOL, INT64, promote
from staticgrad.ops.casting import cast
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.trees import unflatten


def cond(
    pred: ArrayLike,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *args: Any,
) -> Any:
    """Run ``true_fn(*args)`` if `pred` is true, otherwise ``false_fn(*args)``.

    Only the branch that is taken runs, and the other one has a zero gradient. `pred` is
    a scalar; numbers are true if they are not 0. Both functions return trees of one
    structure and of equal shapes; their dtypes are promoted. They may use tensors from
    outside, with gradients.

    Raises ShapeError for a `pred` that is no scalar and for results of different
    shapes, GraphError for different structures and for updates inside.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ())
    >>> y = sg.cond(x > 0, lambda: sg.sqrt(x), lambda: 1.0 - x)
    >>> f = sg.compile([y, sg.grad(y, x)], inputs=[x], target="reference")
    >>> [float(v) for v in f(4.0)], [float(v) for v in f(-1.0)]
    ([2.0, 0.25], [2.0, -1.0])
    """
    asked = _scalar("cond", "pred", pred)
    if asked.dtype != BOOL:
        asked = named("not_equal", asked, cast(as_tensor(0), asked.dtype))
    index = cast(named("logical_not", asked), INT64)
    return _branches("cond", index, (true_fn, false_fn), args)


def switch(index: ArrayLike, fns: Sequence[Callable[..., Any]], *args: Any) -> Any:
    """Run ``fns[index](*args)``; `index` is clamped to the functions.

    Only that function runs, and the others have zero gradients. `index` is an integer
    scalar. What is said of the functions of `cond` holds here too.

    Raises GraphError for no functions, ShapeError and DTypeError for an `index` that is
    no integer scalar.

    >>> import staticgrad as sg
    >>> i = sg.input("i", (), "int64")
    >>> y = sg.switch(i, [lambda v: v + 1, lambda v: v * v], 3.0)
    >>> f = sg.compile(y, inputs=[i], target="reference")
    >>> float(f(0)), float(f(1)), float(f(7))
    (4.0, 9.0, 9.0)
    """
    fns = tuple(fns)
    if not fns:
        raise GraphError(
            f"switch requires functions to choose from, got none; give at least one"
            f"{at(here())}"
        )
    number = _scalar("switch", "index", index)
    if number.dtype.kind not in "iu":
        raise DTypeError(
            f"switch requires an integer index, got {number.type}; cast it with "
            f".astype{at(here())}"
        )
    number = cast(number, INT64)
    least = named("maximum", number, cast(as_tensor(0), INT64))
    last = cast(as_tensor(len(fns) - 1), INT64)
    return _branches("switch", named("minimum", least, last), fns, args)


def _scalar(name: str, what: str, value: ArrayLike) -> Tensor:
    found = as_tensor(value)
    if found.shape != ():
        raise ShapeError(
            f"{name} requires a scalar {what}, got {found.type}; reduce it with sg.all "
            f"or sg.any, or map over it with sg.vmap{at(here())}"
        )
    return found


def _branches(
    name: str, index: Tensor, fns: Sequence[Callable[..., Any]], args: Sequence[Any]
) -> Any:
    found = [traced(name, fn, args) for fn in fns]
    first = found[0]
    columns = [_leaves(name, first, other) for other in found]
    results = _alike(name, first, columns)
    closed = close(first.mark, (), results)
    if not results[0]:
        return unflatten(first.treedef, [])
    outputs = apply_multi(SWITCH, index, *closed.captures, graphs=closed.graphs)
    return unflatten(first.treedef, outputs)


def _leaves(name: str, first: Traced, other: Traced) -> list[Tensor]:
    return [as_tensor(leaf) for leaf in matching(name, first.treedef, other.tree)]


def _alike(
    name: str, first: Traced, columns: Sequence[Sequence[Tensor]]
) -> list[list[Tensor]]:
    """Return the results of all branches, each leaf of one type."""
    kinds = []
    for path, leaves in zip(
        first.treedef.paths, zip(*columns, strict=True), strict=True
    ):
        shapes = {leaf.shape: None for leaf in leaves}
        if len(shapes) > 1:
            got = " and ".join(str(leaf.type) for leaf in leaves)
            raise ShapeError(
                f"{name} requires branches of equal shapes, got {got}"
                f"{' for result' + path if path else ''}; broadcast one of them"
                f"{at(here())}"
            )
        dtype, weak = promote([leaf.type for leaf in leaves])
        kinds.append(settled(dtype) if weak else dtype)
    return [
        [cast(leaf, dtype) for leaf, dtype in zip(column, kinds, strict=True)]
        for column in columns
    ]
