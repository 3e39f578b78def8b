"""scan and fori_loop: loops whose number of steps is known before they begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from staticgrad.control.bodies import close, matching, placeholder, traced
from staticgrad.control.carries import Settled, settle, settled
from staticgrad.control.records import SCAN
from staticgrad.control.while_loops import counted_loop, require_checkpoints
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.source import at, here
from staticgrad.ir.types import INT64, TensorType
from staticgrad.ops.casting import cast
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import shape_error
from staticgrad.trees import TreeDef, flatten, unflatten


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | Size | None = None,
    reverse: bool = False,
    checkpoints: int | None = None,
) -> tuple[Any, Any]:
    """Run ``carry, y = f(carry, x)`` for each x along the first axis of `xs`.

    `init` is the first carry and `xs` a tree of tensors with first axes of one size;
    without `xs`, x is None and `length` says how often. With `reverse` the last x comes
    first. The carry keeps its structure, shapes and dtypes; the tree y may be None.

    Returns the last carry, and all y stacked along a new first axis, in the order of
    `xs`. `f` is called a few times, to build the graph; it may use tensors from
    outside, with gradients. A layer that draws (Dropout) draws other numbers in every
    step, the same ones where a step is run again. A key from outside gives the same
    numbers in every step; fold in a position (``sg.random.fold_in``) for others.

    Reverse mode keeps what it needs of every step, or only so many carries as
    `checkpoints` says, from which it runs steps again in the best order (Revolve). By
    default it keeps everything below 1 GiB, and above that the square root of the
    number of steps.

    Raises GraphError for another structure and for updates inside, ShapeError and
    DTypeError, naming the carry, where a type changes.

    >>> import numpy as np, staticgrad as sg
    >>> x = sg.input("x", ("n",))
    >>> total, sums = sg.scan(lambda c, v: (c + v, c + v), 0.0, x)
    >>> f = sg.compile([total, sums, sg.grad(total, x)], target="reference")
    >>> [v.tolist() for v in f(np.array([1.0, 2.0, 3.0]))]
    [6.0, [1.0, 3.0, 6.0], [1.0, 1.0, 1.0]]
    """
    leaves, treedef = flatten(xs)
    along = [as_tensor(leaf) for leaf in leaves]
    steps = _length(along, treedef, length)
    xs_kinds = [TensorType(t.shape[1:], t.dtype) for t in along]

    def step(position: Tensor, carry: Any, slices: Sequence[Tensor]) -> Any:
        pair = f(carry, unflatten(treedef, slices))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise GraphError(
                f"scan requires a body that returns (carry, y), got "
                f"{type(pair).__name__}; return (carry, None) where nothing is "
                f"stacked{at(here())}"
            )
        return pair

    kept = _checkpoints("scan", checkpoints)
    return _loop("scan", step, init, along, xs_kinds, steps, reverse, kept)


def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body: Callable[[Tensor, Any], Any],
    init: Any,
    checkpoints: int | None = None,
) -> Any:
    """Run ``carry = body(i, carry)`` for i from `lower` to ``upper - 1``.

    `i` is an int64 scalar; ``xs[i]`` reads, with gradients, an element of a tensor. The
    bounds are integers, sizes (``x.shape[0]``) or integer scalar tensors; no step is
    done where `upper` is not above `lower`. The carry keeps its structure, shapes and
    dtypes. Returns the last one. `checkpoints` is that of `scan`; where a bound is a
    tensor it is that of `while_loop`.

    Raises as `scan` does.

    >>> import staticgrad as sg
    >>> x = sg.input("x", (3,))
    >>> y = sg.fori_loop(0, 3, lambda i, total: total + x[i] ** 2, 0.0)
    >>> f = sg.compile([y, sg.grad(y, x)], target="reference")
    >>> [v.tolist() for v in f([1.0, 2.0, 3.0])]
    [14.0, [2.0, 4.0, 6.0]]
    """
    first, last = _bound(lower), _bound(upper)
    kept = _checkpoints("fori_loop", checkpoints)
    if isinstance(first, Tensor) or isinstance(last, Tensor):
        ends = _as_index(first), _as_index(last)
        return counted_loop(*ends, body, init, checkpoints)
    steps = last - first
    if isinstance(steps, int):
        steps = max(steps, 0)
    start = _as_index(first)

    def step(position: Tensor, carry: Any, _: Sequence[Tensor]) -> Any:
        return body(named("add", position, start), carry), None

    return _loop("fori_loop", step, init, [], [], steps, False, kept)[0]


def _checkpoints(name: str, checkpoints: int | None) -> int:
    """Return the number of checkpoints; 0 stands for the default."""
    if checkpoints is None:
        return 0
    require_checkpoints(name, checkpoints)
    return int(checkpoints)


def _bound(value: Any) -> Dim | Tensor:
    if isinstance(value, Size):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    found = as_tensor(value)
    if found.shape != () or found.dtype.kind not in "iu":
        raise ShapeError(
            f"fori_loop requires integer scalars as bounds, got {found.type}; cast or "
            f"reduce it{at(here())}"
        )
    if found.op.name == "extent":
        size: Dim = found.node.attrs["size"]
        return size
    return found


def _as_index(value: Dim | Tensor) -> Tensor:
    return cast(as_tensor(value), INT64)


def _length(
    along: Sequence[Tensor], treedef: TreeDef, length: int | Size | None
) -> Dim:
    sizes: dict[Dim, None] = {}
    for tensor, path in zip(along, treedef.paths, strict=True):
        if not tensor.ndim:
            raise ShapeError(
                f"scan requires xs with a first axis, got {tensor.type} for xs{path}; "
                f"close over what is the same in every step{at(here())}"
            )
        sizes[tensor.shape[0]] = None
    if length is not None:
        if isinstance(length, Tensor):
            rule = "a length that is known before the graph runs"
            raise shape_error("scan", (length,), rule, "use sg.fori_loop")
        sizes[length] = None
    if not sizes:
        raise GraphError(
            f"scan requires xs or length, got neither; give length={at(here())}"
        )
    if len(sizes) > 1:
        raise ShapeError(
            f"scan requires one length, got {' and '.join(map(str, sizes))}; cut what "
            f"is longer{at(here())}"
        )
    found = next(iter(sizes))
    if isinstance(found, int) and found < 0:
        raise ShapeError(f"scan requires length >= 0, got {found}{at(here())}")
    return found


def _loop(
    name: str,
    step: Callable[[Tensor, Any, Sequence[Tensor]], Any],
    init: Any,
    along: Sequence[Tensor],
    kinds: Sequence[TensorType],
    length: Dim,
    reverse: bool,
    checkpoints: int,
) -> tuple[Any, Any]:
    leaves, treedef = flatten(init)
    start = [as_tensor(leaf) for leaf in leaves]
    position = placeholder(TensorType((), INT64), "position")
    slices = [placeholder(kind, f"x_{n}") for n, kind in enumerate(kinds)]
    marks: list[int] = []
    stacked: list[tuple[list[Tensor], TreeDef]] = []

    def call(given: Sequence[Tensor]) -> list[Tensor]:
        carry = unflatten(treedef, given)
        found = traced(name, step, (position, carry, slices), position)
        marks.append(found.mark)
        new, y = found.tree
        ys, structure = flatten(y)
        stacked.append(([_decided(as_tensor(leaf)) for leaf in ys], structure))
        return [as_tensor(leaf) for leaf in matching(name, treedef, new)]

    done: Settled = settle(name, [t.type for t in start], treedef.paths, call)
    ys, structure = stacked[-1]
    results = (*done.results, *ys)
    closed = close(marks[-1], (position, *done.given, *slices), [results])
    first = [cast(t, p.dtype) for t, p in zip(start, done.given, strict=True)]
    if not results:
        return unflatten(treedef, []), unflatten(structure, [])
    outputs = apply_multi(
        SCAN, *first, *along, *closed.captures, graphs=closed.graphs,
        length=length, reverse=bool(reverse), carries=len(first), sequences=len(along),
        checkpoints=checkpoints,
    )  # fmt: skip
    last, rest = outputs[: len(first)], outputs[len(first) :]
    return unflatten(treedef, last), unflatten(structure, rest)


def _decided(y: Tensor) -> Tensor:
    return cast(y, settled(y.dtype)) if y.type.weak else y
