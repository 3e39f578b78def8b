"""Sparsity pattern of a derivative, derived from the graph.

See patterns.py. One walk over the nodes between x and y; sizes are static.

Source: the index-domain propagation of Griewank and Walther, Evaluating Derivatives
(2008), chapter 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from staticgrad.compiler.runtime.targets.reference import run
from staticgrad.errors import ShapeError
from staticgrad.ir.graph import Graph, topological
from staticgrad.ir.node import Constant, Node, Tensor, static_shape
from staticgrad.ir.op import (
    After,
    Call,
    Control,
    Convolution,
    Elementwise,
    Gather,
    Leaf,
    Matmul,
    MatmulAdd,
    Mode,
    Place,
    Pool,
    Random,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
)
from staticgrad.ir.source import at
from staticgrad.ir.types import is_float
from staticgrad.ops.movement.checked_index import TAKE
from staticgrad.sparse.patterns import Array, Indices, Pattern, union

Known: TypeAlias = "Pattern | None"
Rule: TypeAlias = Callable[[Node, Sequence[Known]], Known]


def dependence(y: Tensor, x: Tensor) -> Pattern:
    """Return which elements of the derivative of `y` by `x` may not be zero."""
    columns = _count(x)
    found: dict[Tensor, Pattern] = {x: Pattern.identity(columns)}
    for node in topological([y], {x}):
        inputs = [found.get(t) for t in node.inputs]
        if node.op.vjp is None or all(p is None for p in inputs):
            continue
        for tensor in node.outputs:
            if is_float(tensor.dtype):
                pattern = _of(tensor, inputs)
                if pattern is not None:
                    found[tensor] = pattern
    none = np.zeros(0, np.int64)
    return found.get(y) or Pattern.of(none, none, (_count(y), columns))


def _of(tensor: Tensor, inputs: Sequence[Known]) -> Known:
    """Return the pattern of one output of a node."""
    node = tensor.node
    if len(node.outputs) > 1:
        return _all(tensor, inputs)
    return _rule(node)(node, inputs)


def _rule(node: Node) -> Rule:
    if node.op.jvp == "transposed" or len(node.outputs) > 1:
        return _everything
    return RULES[type(node.op.code)]


def _count(x: Tensor) -> int:
    return int(np.prod(_shape(x), dtype=np.int64))


def _shape(x: Tensor) -> tuple[int, ...]:
    shape = static_shape(x.shape)
    if shape is None:
        raise ShapeError(
            f"a sparse derivative requires static sizes, got {x.type}; give numbers "
            f"instead of names{at(x.source)}"
        )
    return shape


def _numbered(x: Tensor) -> Indices:
    """Number the elements."""
    return np.arange(_count(x)).reshape(_shape(x))


def _joined(parts: Sequence[Known]) -> Known:
    some = [p for p in parts if p is not None]
    return union(some) if some else None


def _elementwise(node: Node, inputs: Sequence[Known]) -> Known:
    shape = _shape(node.outputs[0])
    return _joined(
        [
            None if p is None else p.taken(np.broadcast_to(_numbered(x), shape))
            for x, p in zip(node.inputs, inputs, strict=True)
        ]
    )


def _view(node: Node, inputs: Sequence[Known]) -> Known:
    pattern = inputs[0]
    if pattern is None:
        return None
    return pattern.taken(node.op.numpy(_numbered(node.inputs[0]), **node.attrs))


def _reduce(node: Node, inputs: Sequence[Known]) -> Known:
    (pattern,) = inputs
    y, x = node.outputs[0], node.inputs[0]
    axes = node.attrs["axes"]
    kept = tuple(1 if k in axes else n for k, n in enumerate(_shape(x)))
    groups = np.broadcast_to(_numbered(y).reshape(kept), _shape(x))
    return None if pattern is None else pattern.merged(groups, _count(y))


def _place(node: Node, inputs: Sequence[Known]) -> Known:
    """Merge pieces, whose elements are numbered from 1, input after input."""
    numbered, start = [], 1
    for x in node.inputs:
        numbered.append(_numbered(x) + start)
        start += _count(x)
    attrs = {**node.attrs, "value": 0} if "value" in node.attrs else node.attrs
    places = node.op.numpy(*numbered, **attrs) - 1
    parts, start = [], 0
    for x, pattern in zip(node.inputs, inputs, strict=True):
        inside = (places >= start) & (places < start + _count(x))
        own = np.where(inside, places - start, -1)
        parts.append(None if pattern is None else pattern.taken(own))
        start += _count(x)
    return _joined(parts)


def _mode(node: Node, inputs: Sequence[Known]) -> Known:
    return _joined(inputs)


def _matmul(node: Node, inputs: Sequence[Known]) -> Known:
    """Return the pattern: ``y[i, j]`` depends on row i of x and column j of y."""
    x, y = node.inputs
    left, right = inputs
    shape = _shape(node.outputs[0])
    count = _count(node.outputs[0])
    if left is not None and right is None and isinstance(y, Constant) and y.ndim == 2:
        return _by_constant(left, _numbered(x), y.value, shape)
    if right is not None and left is None and isinstance(x, Constant) and x.ndim == 2:
        turned = shape[::-1]
        found = _by_constant(right, _numbered(y).T, x.value.T, turned)
        return found.taken(np.arange(count).reshape(turned).T)
    parts: list[Known] = []
    rows = np.arange(count // max(shape[-1], 1)).reshape(*shape[:-1], 1)
    if left is not None:
        merged = left.merged(np.broadcast_to(rows, _shape(x)), rows.size)
        parts.append(merged.taken(np.broadcast_to(rows, shape)))
    lines = np.arange(count // max(shape[-2], 1)).reshape(*shape[:-2], 1, shape[-1])
    if right is not None:
        merged = right.merged(np.broadcast_to(lines, _shape(y)), lines.size)
        parts.append(merged.taken(np.broadcast_to(lines, shape)))
    return _joined(parts)


def _by_constant(
    pattern: Pattern, numbers: Indices, matrix: Array, shape: tuple[int, ...]
) -> Pattern:
    """Return the pattern of ``x @ matrix``; zeros of the matrix do not count."""
    inner, columns = np.nonzero(matrix)
    parts = pattern.taken(numbers[:, inner])
    result = np.arange(shape[0] * shape[1]).reshape(shape)
    return parts.merged(result[:, columns], shape[0] * shape[1])


def _gather(node: Node, inputs: Sequence[Known]) -> Known:
    x, index = node.inputs
    pattern, known = inputs[0], _known(index)
    if pattern is None:
        return None
    if known is not None:
        return pattern.taken(TAKE.numpy(_numbered(x), known, **node.attrs))
    lines, count = _lines(x, node.attrs["axis"])
    merged = pattern.merged(lines, count)
    return merged.taken(_taken_lines(lines, index, node.attrs))


def _scatter(node: Node, inputs: Sequence[Known]) -> Known:
    base, index, _ = node.inputs
    kept, _, new = inputs
    if new is None:
        return kept
    where = {name: value for name, value in node.attrs.items() if name != "combine"}
    known = _known(index)
    if known is not None:
        places = TAKE.numpy(_numbered(base), known, **where)
        return _joined([kept, new.merged(places, _count(base))])
    lines, count = _lines(base, where["axis"])
    merged = new.merged(_taken_lines(lines, index, where), count)
    return _joined([kept, merged.taken(lines)])


def _lines(x: Tensor, axis: int) -> tuple[Indices, int]:
    """Return the number of each element's line along `axis`, and how many there are."""
    shape = list(_shape(x))
    shape[axis] = 1
    numbers = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return np.broadcast_to(numbers, _shape(x)), numbers.size


def _taken_lines(lines: Indices, index: Tensor, where: Any) -> Indices:
    found: Indices = TAKE.numpy(lines, np.zeros(_shape(index), np.int64), **where)
    return found


def _known(index: Tensor) -> Array | None:
    """Return the value of an index that depends on constants alone; else None."""
    for node in topological([index]):
        if isinstance(node.op.code, Leaf) and not isinstance(node.outputs[0], Constant):
            return None
    (value,), _ = run(Graph.closed((), [index]), "eval", {})
    return value


def _everything(node: Node, inputs: Sequence[Known]) -> Known:
    """Return the dense pattern: each element depends on all that any input does."""
    return _all(node.outputs[0], inputs)


def _all(tensor: Tensor, inputs: Sequence[Known]) -> Known:
    merged = [p.merged(np.zeros(p.rows, np.int64), 1) for p in inputs if p is not None]
    whole = union(merged)
    return whole.taken(np.zeros(_count(tensor), np.int64))


RULES: dict[type, Rule] = {
    Elementwise: _elementwise,
    View: _view,
    Reduce: _reduce,
    Place: _place,
    Matmul: _matmul,
    Gather: _gather,
    Scatter: _scatter,
    Mode: _mode,
    **dict.fromkeys(
        (After, Call, Control, Convolution, MatmulAdd, Pool, Random, Scan, Sort),
        _everything,
    ),
}
