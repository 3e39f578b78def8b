"""vmap: functions of one example as functions of a batch.

The function is traced once, on placeholders of the examples' types; then every node
that depends on one is rewritten to work on all examples at once (batch_rules.py). So
``grad``, ``jvp``, ``vmap`` and the rest may be called inside, and tensors from outside
are shared by all examples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ref

from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.graph import Update, current_graph, depending
from staticgrad.ir.node import Input, Node, Tensor
from staticgrad.ir.size import Dim
from staticgrad.ir.source import DERIVED, at, here
from staticgrad.ir.types import TensorType
from staticgrad.ops.leaves import INPUT
from staticgrad.ops.movement.views import transposed
from staticgrad.ops.promotion import as_tensor
from staticgrad.trees import TreeDef, flatten, unflatten
from staticgrad.vectorize.batch_rules import batched
from staticgrad.vectorize.example_axis import with_example_axis


@dataclass(frozen=True, slots=True)
class _Traced:
    """Result of tracing a function for one example, and its placeholders' examples."""

    results: list[Tensor]
    treedef: TreeDef
    examples: dict[Tensor, Tensor]
    size: Dim


def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0
) -> Callable[..., Any]:
    """Return `fn`, written for one example, as a function of many examples at once.

    Each argument is a tree whose tensors have an axis of examples: `in_axes` is the
    number of that axis, for all arguments or as a tuple with an entry for each; an
    entry may be a tree like its argument, and None says that the argument is the same
    for all examples. `out_axes` says in the same way where the axis of examples goes in
    the results; there None is for what does not depend on the examples.

    The sizes of these axes are equal, and may be symbolic. `fn` may call grad, jvp,
    jacobian and vmap, and may use tensors from outside. A random key from outside is
    the same for all examples; map over keys to draw differently.

    Raises GraphError where nothing is mapped or the trees do not fit, ShapeError where
    sizes differ.

    >>> import staticgrad as sg
    >>> w = sg.parameter([1.0, 2.0], name="w")
    >>> x = sg.input("x", ("batch", 2))
    >>> loss = lambda row: sg.tanh(sg.sum(row * w))
    >>> print(sg.vmap(lambda row: sg.grad(loss(row), w))(x).type)
    float32[batch, 2]
    """

    @functools.wraps(fn)
    def mapped(*args: Any) -> Any:
        traced = _trace(fn, args, in_axes)
        axes = list(_spread(traced.treedef, out_axes, "out_axes"))
        found = batched(traced.results, traced.examples, traced.size)
        results = [
            _placed(result, found.get(result), axis, traced.size)
            for result, axis in zip(traced.results, axes, strict=True)
        ]
        _note(traced.results, results)
        return unflatten(traced.treedef, results)

    return mapped


def _trace(fn: Callable[..., Any], args: tuple[Any, ...], in_axes: Any) -> _Traced:
    leaves, treedef = flatten(args)
    spread = in_axes if in_axes is None or isinstance(in_axes, int) else tuple(in_axes)
    axes = list(_spread(treedef, spread, "in_axes"))
    moved = [
        None if axis is None else _leading(as_tensor(leaf), axis)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    size = _size([t for t in moved if t is not None])
    places = [None if t is None else _placeholder(t, k) for k, t in enumerate(moved)]
    given = [x if p is None else p for x, p in zip(leaves, places, strict=True)]
    examples = {
        p: t
        for p, t in zip(places, moved, strict=True)
        if p is not None and t is not None
    }
    with _tracing(examples):
        results, structure = flatten(fn(*unflatten(treedef, given)))
    return _Traced([as_tensor(t) for t in results], structure, examples, size)


def _leading(x: Tensor, axis: int) -> Tensor:
    """Return `x` with `axis` in front."""
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(
            f"vmap requires arguments with an axis {axis} of examples, got {x.type}; "
            f"give None in in_axes for what is the same for all{at(here())}"
        )
    place = axis % x.ndim
    return transposed(x, (place, *(k for k in range(x.ndim) if k != place)))


def _size(examples: Sequence[Tensor]) -> Dim:
    if not examples:
        raise GraphError(
            f"vmap requires an argument to map over, got none; give an axis in in_axes"
            f"{at(here())}"
        )
    sizes: dict[Dim, None] = dict.fromkeys(t.shape[0] for t in examples)
    if len(sizes) > 1:
        raise ShapeError(
            f"vmap requires one number of examples, got {' and '.join(map(str, sizes))}"
            f"; check in_axes{at(here())}"
        )
    return next(iter(sizes))


def _placeholder(examples: Tensor, number: int) -> Tensor:
    """Return a leaf of the type of one example, to be replaced by rewriting."""
    kind = TensorType(examples.shape[1:], examples.dtype)
    attrs = {"name": f"_example_{number}", "shape": kind.shape, "dtype": kind.dtype}
    node = Node(INPUT, (), attrs, (kind,), source=here(), leaf=Input)
    return node.outputs[0]


def _placed(x: Tensor, found: Tensor | None, axis: int | None, n: Dim) -> Tensor:
    """Return all examples of the result `x`, their axis at `axis`."""
    if axis is None:
        if found is None:
            return x
        raise GraphError(
            f"vmap requires results that are the same for all examples where out_axes "
            f"is None, got {x.type} that depends on them; give an axis{at(x.source)}"
        )
    whole = with_example_axis(x, found, n)
    if not -whole.ndim <= axis < whole.ndim:
        raise ShapeError(
            f"vmap requires an axis of the result in out_axes, got {axis} for "
            f"{whole.type}{at(here())}"
        )
    order = list(range(1, whole.ndim))
    order.insert(axis % whole.ndim, 0)
    return transposed(whole, tuple(order))


def _spread(treedef: TreeDef, axes: Any, name: str) -> Iterator[int | None]:
    """Yield an axis for each leaf of `treedef`; one axis may serve a subtree."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        yield from [axes] * treedef.count
        return
    parts = _entries(treedef, axes)
    if parts is None:
        like = "arguments" if name == "in_axes" else "results"
        raise GraphError(
            f"vmap requires {name} of integers, None, or a tree like the {like}, got "
            f"{axes!r}{at(here())}"
        )
    for child, part in zip(treedef.children, parts, strict=True):
        yield from _spread(child, part, name)


def _entries(treedef: TreeDef, axes: Any) -> list[Any] | None:
    """Return the entries of `axes` for the children of `treedef`, or None."""
    if treedef.kind == "dict":
        same = isinstance(axes, dict) and axes.keys() == set(treedef.keys)
        return [axes[key] for key in treedef.keys] if same else None
    if treedef.kind == "dataclass":
        return [getattr(axes, key, None) for key in treedef.keys]
    if treedef.kind not in ("tuple", "list") or not isinstance(axes, tuple | list):
        return None
    return list(axes) if len(axes) == len(treedef.children) else None


@contextmanager
def _tracing(examples: Collection[Tensor]) -> Iterator[None]:
    """Drop from the open Graph the nodes made inside that depend on `examples`.

    Raises GraphError on leaving where an update depends on them.
    """
    graph = current_graph()
    if graph is None:
        yield
        return
    made, updates = len(graph.made), len(graph.updates)
    yield
    _check_updates(graph.updates[updates:], examples)
    new = [(made_, made_()) for made_ in graph.made[made:]]
    alive = [t for _, t in new if t is not None]
    inside = depending(alive, examples)
    graph.made[made:] = [r for r, t in new if t is not None and t not in inside]


def _note(before: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Add to the open Graph the results made from the examples."""
    graph = current_graph()
    if graph is not None and DERIVED.get() is None:
        pairs = zip(before, results, strict=True)
        graph.made += [ref(now) for old, now in pairs if now is not old]


def _check_updates(updates: Sequence[Update], examples: Collection[Tensor]) -> None:
    inside = depending([new for _, new in updates], examples)
    for leaf, new in updates:
        if new in inside:
            raise GraphError(
                f"vmap requires updates that are the same for all examples, got one of "
                f"{leaf.name!r} that depends on them; return the value and update "
                f"outside{at(new.source)}"
            )
