"""Batching of nodes: each op evaluated over a leading axis of n examples.

Every rule is decided by the kind of the op's code, or by the op's own ``batch``. Inputs
that do not depend on the examples stay as they are where the kind allows it (a weight
in a product, a table in a gather); otherwise they are broadcast, which costs no memory.

Attributes have one meaning in every op, so their change under a leading axis follows
from their name (LEADING).

Weakness: an op of another kind, or with an attribute that LEADING does not know, is
made once per example and stacked; this takes a static number of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from staticgrad.errors import GraphError
from staticgrad.ir.graph import apply_multi, deriving, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import (
    After,
    Call,
    Convolution,
    Elementwise,
    Gather,
    IndexCheck,
    Matmul,
    MatmulAdd,
    Mode,
    Place,
    Pool,
    Random,
    Reduce,
    Scan,
    Scatter,
    Select,
    Shuffle,
    Sort,
    View,
)
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at
from staticgrad.ops.movement.checked_index import checked, position
from staticgrad.ops.movement.placement import joined
from staticgrad.ops.movement.slicing import cut
from staticgrad.ops.movement.views import reshaped, transposed
from staticgrad.ops.named import named
from staticgrad.ops.promotion import as_tensor
from staticgrad.vectorize.control_rules import control_batched, example
from staticgrad.vectorize.example_axis import with_example_axis
from staticgrad.vectorize.image_rules import convolution

Batched: TypeAlias = Sequence[Tensor | None]
Rule: TypeAlias = Callable[[Node, Batched, Dim], Sequence[Tensor]]

# how an attribute changes under a leading axis of n
LEADING: dict[str, Callable[[Dim, Any], Any]] = {
    "shape": lambda n, shape: (n, *shape),
    "axis": lambda n, axis: axis + 1 if axis >= 0 else axis,
    "axes": lambda n, order: (0, *(axis + 1 for axis in order)),
    "starts": lambda n, starts: (0, *starts),
    "sizes": lambda n, sizes: (n, *sizes),
    "steps": lambda n, steps: (1, *steps),
    "low": lambda n, widths: (0, *widths),
    "high": lambda n, widths: (0, *widths),
    "interior": lambda n, widths: (0, *widths),
    **dict.fromkeys(
        "value dtype bits pointwise window combine exclusive offset".split(),
        lambda n, value: value,
    ),
}


def batched(
    outputs: Sequence[Tensor], examples: Mapping[Tensor, Tensor], n: Dim
) -> dict[Tensor, Tensor]:
    """Return, for each tensor that depends on keys of `examples`, its batched form.

    `examples` maps a tensor of one example to all of them along a leading axis.
    """
    found = dict(examples)
    _extend(found, outputs, n, _Bodies(n))
    return found


def _extend(
    found: dict[Tensor, Tensor], outputs: Sequence[Tensor], n: Dim, bodies: _Bodies
) -> None:
    """Add to `found` the batched tensors that `outputs` need."""
    with deriving() as derive_from:
        for node in topological(outputs, found):
            inputs = [found.get(t) for t in node.inputs]
            if all(t is None for t in inputs):
                continue
            derive_from(node)
            if node.graphs:
                results = control_batched(node, inputs, n, bodies)
            else:
                results = _rule(node)(node, inputs, n)
            found.update(zip(node.outputs, results, strict=True))


class _Bodies:
    """Batched bodies of control flow.

    Those of a loop and of its derivative share tensors, and do so afterwards, so that
    the compiler can run them as one.
    """

    def __init__(self, n: Dim) -> None:
        self._n = n
        self._places: dict[Tensor, Tensor] = {}
        self._found: dict[frozenset[Tensor], dict[Tensor, Tensor]] = {}
        self._with_example_axis: dict[Tensor, Tensor] = {}

    def __call__(
        self, outputs: Sequence[Tensor], flagged: Sequence[Tensor]
    ) -> tuple[Mapping[Tensor, Tensor], Mapping[Tensor, Tensor]]:
        """Batch tensors; see Inner in control_rules.py."""
        for tensor in flagged:
            if tensor not in self._places:
                name = tensor.node.attrs["name"]
                self._places[tensor] = example(tensor, self._n, name)
        places = {tensor: self._places[tensor] for tensor in flagged}
        found = self._found.setdefault(frozenset(flagged), dict(places))
        _extend(found, outputs, self._n, self)
        return places, found

    def with_example_axis(self, x: Tensor, found: Tensor | None) -> Tensor:
        """Return `found`, or `x` repeated; the same tensor for the same `x`."""
        if found is None and x not in self._with_example_axis:
            self._with_example_axis[x] = with_example_axis(x, None, self._n)
        return self._with_example_axis[x] if found is None else found


def _rule(node: Node) -> Rule:
    if node.op.batch is not None:
        return _own_rule
    rule = RULES[type(node.op.code)]
    is_known = rule not in _BY_NAME or node.attrs.keys() <= LEADING.keys()
    return rule if is_known else _one_by_one


def _own_rule(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    assert node.op.batch is not None
    result = node.op.batch(n, *_all_led(node, inputs, n), **node.attrs)
    return (result,) if node.op.outputs == 1 else tuple(result)


def _all_led(node: Node, inputs: Batched, n: Dim) -> list[Tensor]:
    return [
        with_example_axis(*pair, n) for pair in zip(node.inputs, inputs, strict=True)
    ]


def _elementwise(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    """Batch an elementwise op: shorter shapes get axes of size 1 after the first."""
    rank = max(t.ndim for t in node.inputs)
    aligned = [
        x if found is None else reshaped(found, (n, *(1,) * (rank - x.ndim), *x.shape))
        for x, found in zip(node.inputs, inputs, strict=True)
    ]
    return apply_multi(node.op, *aligned, **node.attrs)


def _leading(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    return apply_multi(node.op, *_all_led(node, inputs, n), **_led_attrs(node, n))


def _led_attrs(node: Node, n: Dim) -> dict[str, Any]:
    return {name: LEADING[name](n, value) for name, value in node.attrs.items()}


def _random(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    """Batch a draw: keys have the leading axis, parameters size 1 after it."""
    keys, *others = _all_led(node, inputs, n)
    rank = node.outputs[0].ndim
    aligned = [
        reshaped(x, (n, *(1,) * (rank + 1 - x.ndim), *x.shape[1:])) for x in others
    ]
    return apply_multi(node.op, keys, *aligned, **_led_attrs(node, n))


def _unchanged(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    return apply_multi(node.op, *_all_led(node, inputs, n), **node.attrs)


def _reduce(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    attrs = {**node.attrs, "axes": tuple(axis + 1 for axis in node.attrs["axes"])}
    return apply_multi(node.op, *_all_led(node, inputs, n), **attrs)


def _matmul(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    """Batch a product: one product of all rows (columns) if one factor is shared."""
    x, y = node.inputs
    left, right = inputs
    if left is not None and right is None and y.ndim == 2:
        rows = reshaped(left, (n * x.shape[0], x.shape[1]))
        flat = named("matmul", rows, y)
        return (reshaped(flat, (n, x.shape[0], y.shape[1])),)
    if left is None and right is not None and x.ndim == 2 and y.shape[1] == 1:
        rows = reshaped(right, (n, y.shape[0]))
        flat = named("matmul", rows, transposed(x, (1, 0)))
        return (reshaped(flat, (n, x.shape[0], 1)),)
    return _unchanged(node, inputs, n)


def _gather(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    """Batch a gather: if table and index both differ, gather from one long table."""
    x, index = inputs
    attrs = node.attrs
    if attrs["pointwise"]:
        return _leading(node, inputs, n)
    if index is None and x is not None:
        moved = {**attrs, "axis": LEADING["axis"](n, attrs["axis"])}
        return apply_multi(node.op, x, node.inputs[1], **moved)
    assert index is not None
    if x is None:
        axis = attrs["axis"] % node.inputs[0].ndim
        (taken,) = apply_multi(node.op, node.inputs[0], index, **attrs)
        return (_moved(taken, axis, 0),)
    rows = _Rows(node.inputs[0], index, attrs, n)
    (taken,) = apply_multi(node.op, rows.table(x), rows.index(), **rows.attrs)
    return (rows.parts_back(taken),)


def _scatter(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    base, index, updates = inputs
    attrs = node.attrs
    if attrs["pointwise"]:
        return _leading(node, inputs, n)
    x = with_example_axis(node.inputs[0], base, n)
    new = with_example_axis(node.inputs[2], updates, n)
    if index is None:
        moved = {**attrs, "axis": LEADING["axis"](n, attrs["axis"])}
        return apply_multi(node.op, x, node.inputs[1], new, **moved)
    rows = _Rows(node.inputs[0], index, attrs, n)
    parts = rows.parts(new)
    (put,) = apply_multi(node.op, rows.table(x), rows.index(), parts, **rows.attrs)
    return (rows.table_back(put),)


class _Rows:
    """Tables of all examples as one table, and the index into it.

    The indexed axis of extent e comes next to the leading one: example b has the rows
    ``b * e .. b * e + e - 1``.
    """

    def __init__(self, x: Tensor, index: Tensor, attrs: Mapping[str, Any], n: Dim):
        self.axis = attrs["axis"] % x.ndim
        self.shape = x.shape
        self.n = n
        self.examples_index = index
        self.window: Dim | None = attrs.get("window")
        self.attrs = {**attrs, "axis": 0}

    def index(self) -> Tensor:
        """Return the index into the long table; it was in range in its own."""
        index = self.examples_index
        extent = self.shape[self.axis]
        number = position((self.n, *(1,) * (index.ndim - 1)), 0)
        start = named("multiply", number, as_tensor(extent, number))
        room = self.n * extent
        if self.window is not None:
            room = room - self.window + 1
        return checked(named("add", index, start), room, wrap=False)

    def table(self, x: Tensor) -> Tensor:
        """Reshape (n, before, e, after) to (n * e, before, after)."""
        near = _moved(x, self.axis + 1, 1)
        return reshaped(near, (self.n * near.shape[1], *near.shape[2:]))

    def table_back(self, rows: Tensor) -> Tensor:
        """Reshape (n * e, before, after) to (n, before, e, after)."""
        near = reshaped(rows, (self.n, self.shape[self.axis], *rows.shape[1:]))
        return _moved(near, 1, self.axis + 1)

    def parts(self, x: Tensor) -> Tensor:
        """Reshape (n, before, index, after) to (n, index, before, after)."""
        return transposed(x, self._order())

    def parts_back(self, x: Tensor) -> Tensor:
        """Reshape (n, index, before, after) to (n, before, index, after)."""
        order = self._order()
        return transposed(x, tuple(order.index(k) for k in range(x.ndim)))

    def _order(self) -> tuple[int, ...]:
        taken = self.examples_index.ndim - 1 + (self.window is not None)
        first = 1 + self.axis
        rank = len(self.shape) + taken
        middle = range(first, first + taken)
        return (0, *middle, *range(1, first), *range(first + taken, rank))


def _moved(x: Tensor, source: int, place: int) -> Tensor:
    """Return `x` with the axis `source` at `place`."""
    order = [k for k in range(x.ndim) if k != source]
    order.insert(place, source)
    return transposed(x, tuple(order))


def _one_by_one(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    """Apply the op to each example and stack the results."""
    if not isinstance(n, int):
        raise GraphError(
            f"vmap requires a static number of examples for {node.op.name}, got {n}; "
            f"give the axis a number{at(node.source)}"
        )
    all_led = _all_led(node, inputs, n)
    results = [_example(node, all_led, number) for number in range(n)]
    return [joined(parts, 0) for parts in zip(*results, strict=True)]


def _example(node: Node, inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    own = [reshaped(cut(t, 0, number, 1), t.shape[1:]) for t in inputs]
    outputs = apply_multi(node.op, *own, graphs=node.graphs, **node.attrs)
    return [reshaped(t, (1, *t.shape)) for t in outputs]


RULES: dict[type, Rule] = {
    Elementwise: _elementwise,
    IndexCheck: _elementwise,
    Reduce: _reduce,
    View: _leading,
    Place: _leading,
    Random: _random,
    Shuffle: _leading,
    Matmul: _matmul,
    MatmulAdd: _unchanged,
    Convolution: convolution,
    Mode: _unchanged,
    Select: _unchanged,  # along the last axis
    Sort: _unchanged,
    After: _unchanged,
    Scan: _leading,
    Gather: _gather,
    Scatter: _scatter,
    **dict.fromkeys((Call, Pool), _one_by_one),
}
_BY_NAME = (_leading, _random)
