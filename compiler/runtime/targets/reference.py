"""The reference target: a Graph as built, evaluated node by node with NumPy.

It is the oracle of all tests, so it uses nothing of the compiler: no pass has touched
the graph, by_mode is resolved here, and only the branch of the mode is evaluated. Each
result is checked against its inferred type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.failures import raised_by
from staticgrad.errors import CompilerBug, IndexOutOfRange, LoopLimitError, ShapeError
from staticgrad.ir.compute import compute as compute_node
from staticgrad.ir.foreign import ForeignError
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Constant, Input, Node, Stored, Tensor
from staticgrad.ir.op import IndexCheck, Mode
from staticgrad.ir.size import Size, evaluate
from staticgrad.ir.source import at, called
from staticgrad.ir.types import INT64

Array: TypeAlias = npt.NDArray[Any]
ModeName: TypeAlias = Literal["train", "eval"]
Values: TypeAlias = dict[Tensor, Array]


def run(
    graph: Graph, mode: ModeName, inputs: Mapping[str, Array]
) -> tuple[list[Array], list[tuple[Stored, Array]]]:
    """Return the outputs of `graph`, and the new value of each leaf that it updates.

    `inputs` maps names to arrays of the inputs' own dtypes. Nothing is written: the
    caller applies the updates. Raises IndexOutOfRange for a bad index, ShapeError where
    the inputs' shapes do not fit together.
    """
    values: Values = {leaf: inputs[leaf.name] for leaf in graph.inputs}
    computed = compute(graph, mode, values)
    outputs = [computed[t].copy() for t in graph.outputs]
    return outputs, [(leaf, computed[t].copy()) for leaf, t in graph.updates]


def compute(
    graph: Graph,
    mode: ModeName,
    given: Mapping[Tensor, Array],
    sizes: Mapping[str, int] | None = None,
) -> Values:
    """Evaluate every tensor that the roots need; `given` holds the inputs' values.

    `sizes` are the symbols' values, which otherwise follow from the inputs.
    """
    values: Values = dict(given)
    if sizes is None:
        sizes = bind_sizes(graph.inputs, [values[leaf] for leaf in graph.inputs])
    with np.errstate(all="ignore"):
        for node in needed(graph.roots, mode):
            if any(t not in values for t in node.outputs):
                values.update(_results(node, values, sizes, mode))
    return values


def bind_sizes(inputs: Sequence[Input], arrays: Sequence[Array]) -> dict[str, int]:
    """Return the value of each symbol, from the shapes of `arrays`."""
    sizes: dict[str, int] = {}
    for leaf, array in zip(inputs, arrays, strict=True):
        if array.ndim != leaf.ndim:
            raise _misfit(leaf, array)
        for dim, extent in zip(leaf.shape, array.shape, strict=True):
            if isinstance(dim, Size) and str(dim) in dim.symbols():
                sizes.setdefault(str(dim), extent)
    for leaf, array in zip(inputs, arrays, strict=True):
        shape = tuple(evaluate(dim, sizes) for dim in leaf.shape)
        if shape != array.shape:
            raise _misfit(leaf, array)
    return sizes


def _misfit(leaf: Input, array: Array) -> ShapeError:
    return ShapeError(
        f"input {leaf.name!r} requires {leaf.type}, got shape {array.shape}; "
        f"equal symbols are equal sizes{at(leaf.source)}"
    )


def needed(roots: Sequence[Tensor], mode: ModeName) -> list[Node]:
    """Return the nodes that `roots` need in `mode`, each after those that it reads."""
    order: list[Node] = []
    done: set[Node] = set()
    stack = [(root.node, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
            continue
        if node in done:
            continue
        done.add(node)
        stack.append((node, True))
        stack.extend((t.node, False) for t in reversed(read(node, mode)))
    return order


def read(node: Node, mode: ModeName) -> tuple[Tensor, ...]:
    """Return the inputs that `node` reads in `mode`."""
    if isinstance(node.op.code, Mode):
        return (node.inputs[0 if mode == "train" else 1],)
    return node.inputs


def _results(
    node: Node, values: Values, sizes: Mapping[str, int], mode: ModeName
) -> Values:
    tensor = node.outputs[0]
    if isinstance(tensor, Stored):
        return {tensor: tensor.storage.array}
    if isinstance(tensor, Constant):
        return {tensor: tensor.value}
    arrays = [values[t] for t in read(node, mode)]
    if isinstance(node.op.code, Mode):
        return {tensor: arrays[0]}
    results = _apply(node, arrays, sizes, mode)
    pairs = zip(node.outputs, results, strict=True)
    return {t: _checked(t, array, sizes) for t, array in pairs}


def _apply(
    node: Node, arrays: list[Array], sizes: Mapping[str, int], mode: ModeName
) -> tuple[Any, ...]:
    attrs = {name: _bound(value, sizes) for name, value in node.attrs.items()}
    if isinstance(node.op.code, IndexCheck):
        return (check_index(node, arrays[0], attrs["extent"], attrs["wrap"]),)
    if node.graphs:
        attrs["graphs"] = tuple(_Body(inner, mode, sizes) for inner in node.graphs)
    try:
        return compute_node(node.op, arrays, attrs, node.types)
    except ForeignError as error:
        raise raised_by(
            error.function, error.error, error.position, node.op.name, node.source
        ) from error.error
    except LoopLimitError as error:
        if len(error.args) == 1:  # of a loop inside, which has its line
            raise
        raise LoopLimitError(f"{error.args[0]}{at(node.source)}") from None


@dataclass(frozen=True, slots=True)
class _Body:
    """Nested graph as a function of its inputs, in order.

    `results` are shape and dtype of what it gives.
    """

    graph: Graph
    mode: ModeName
    sizes: Mapping[str, int]

    def __call__(self, *arrays: Array) -> list[Array]:
        given: Values = dict(zip(self.graph.inputs, arrays, strict=True))
        values = compute(self.graph, self.mode, given, self.sizes)
        return [values[t] for t in self.graph.outputs]

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each result."""
        return [
            (tuple(evaluate(dim, self.sizes) for dim in t.shape), t.dtype)
            for t in self.graph.outputs
        ]


def _bound(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, Size):
        return value.evaluate(sizes)
    if isinstance(value, tuple):
        return tuple(_bound(v, sizes) for v in value)
    return value


def check_index(node: Node, index: Array, extent: int, wrap: bool) -> Array:
    """Return `index` wrapped to ``0..extent-1`` as int64; IndexOutOfRange if out."""
    lowest = f"-{extent}" if wrap and extent else "0"
    bad = (index < -extent if wrap else index < 0) | (index >= extent)
    if bad.any():
        position = int(np.argmax(bad))
        got = f"{index.flat[position]} at position {position}"
        if not extent:
            got = f"{index.size} of them for an axis of size 0"
        raise IndexOutOfRange(
            f"{called(node.source, node.op.name)} requires "
            f"{lowest} <= index < {extent}, got {got}; "
            f"look at the {'' if wrap else 'labels or '}indices{at(node.source)}"
        )
    index = index.astype(INT64)
    return np.where(index < 0, index + extent, index)


def _checked(tensor: Tensor, result: Any, sizes: Mapping[str, int]) -> Array:
    array = np.asarray(result)
    shape = tuple(evaluate(dim, sizes) for dim in tensor.shape)
    if array.shape != shape or array.dtype != tensor.dtype:
        raise CompilerBug(
            f"{tensor.op.name} requires NumPy to give {tensor.type}, got "
            f"{array.dtype}{list(array.shape)}{at(tensor.source)}"
        )
    return array
