"""Bodies of branches and loops: users' functions as Graphs.

A function is called once on placeholders. Tensors made during the call belong to the
body, whether they depend on the placeholders or not, so a branch that only closes over
tensors is still lazy; earlier tensors are captured, and become inputs of the body.
Constants, their views and sizes are part of the body: they cost nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from staticgrad.errors import GraphError
from staticgrad.ir.graph import Graph, current_graph, rewritten
from staticgrad.ir.node import Constant, Input, Node, Tensor
from staticgrad.ir.op import Leaf, View
from staticgrad.ir.source import at, here
from staticgrad.ir.types import TensorType
from staticgrad.ops.leaves import INPUT, frozen
from staticgrad.ops.random import RandomStream, inside_loop
from staticgrad.trees import TreeDef, flatten, flatten_as

BODY_INPUT = replace(INPUT)
"""Op of inputs of bodies, which are no arguments of a call."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Result of tracing a function: a tree of tensors and its structure.

    `mark` is a node number: nodes of a higher one were made by the function.
    """

    mark: int
    tree: Any
    treedef: TreeDef


Places = dict[tuple[int, int], Tensor]


@dataclass(slots=True)
class Tracing:
    """Replacements of the tensors that a user's function made or captured.

    By the number of a tensor's node and its index in it, which keep nothing alive.
    """

    made: Places = field(default_factory=dict)
    captured: Places = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """Graphs with equal inputs, of which the last are those for `captures`."""

    graphs: tuple[Graph, ...]
    captures: tuple[Tensor, ...]


def placeholder(kind: TensorType, name: str) -> Tensor:
    """Return a new input of a body."""
    attrs = {"name": name, "shape": kind.shape, "dtype": kind.dtype}
    return Node(BODY_INPUT, (), attrs, (kind,), source=here(), leaf=Input).outputs[0]


def require_callable(name: str, fn: Any) -> None:
    """Raise GraphError unless `fn` is callable."""
    if not callable(fn):
        raise GraphError(
            f"{name} requires functions, got {type(fn).__name__}; wrap a value in a "
            f"lambda{at(here())}"
        )


def traced(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    position: Tensor | None = None,
) -> Traced:
    """Call `fn` for the public function `name`; the body of a loop at `position`."""
    require_callable(name, fn)
    mark = frozen(np.zeros(())).node.number
    drawing = nullcontext() if position is None else inside_loop(position)
    with _inside(name), drawing:
        tree = fn(*args)
    return Traced(mark, tree, flatten(tree)[1])


def matching(name: str, treedef: TreeDef, tree: Any) -> list[Any]:
    """Return the leaves of `tree`, which has the structure `treedef`."""
    try:
        leaves = flatten_as(treedef, tree)
    except GraphError as error:
        raise GraphError(f"{name}: {error}{at(here())}") from None
    for leaf, path in zip(leaves, treedef.paths, strict=True):
        kind = flatten(leaf)[1].kind
        if kind != "leaf":
            raise GraphError(
                f"{name}: trees require one structure, got a leaf and {kind} at "
                f"{path or 'the root'}{at(here())}"
            )
    return leaves


@contextmanager
def _inside(name: str) -> Iterator[None]:
    """Drop from the open Graph the nodes made inside: they belong to a body."""
    graph = current_graph()
    if graph is None:
        yield
        return
    made, updates = len(graph.made), len(graph.updates)
    yield
    del graph.made[made:]
    for leaf, new in graph.updates[updates:]:
        if leaf is not graph.record(RandomStream).stream:
            raise GraphError(
                f"{name} requires a body without updates, got one of {leaf.name!r}; "
                f"return the value and update outside{at(new.source)}"
            )


def close(
    mark: int, given: Sequence[Tensor], results: Sequence[Sequence[Tensor]]
) -> Closed:
    """Return the graphs of `results`, functions of `given` and of captures."""
    found: dict[Tensor, Tensor] = {}
    known = set(given)
    nodes: list[Sequence[Node]] = []
    for tensors in results:
        nodes.append(_nodes_inside(tensors, mark, known, found))
    inputs = (*given, *found.values())
    graphs = tuple(
        _graph(inputs, inside, found, tensors)
        for inside, tensors in zip(nodes, results, strict=True)
    )
    return Closed(graphs, tuple(found))


def _graph(
    inputs: tuple[Tensor, ...],
    inside: Sequence[Node],
    captured: dict[Tensor, Tensor],
    tensors: Sequence[Tensor],
) -> Graph:
    new = rewritten(inside, lambda node, _: None, captured, nested=False)
    graph = Graph.closed(inputs, [new.get(t, t) for t in tensors])
    made = {old: now for old, now in new.items() if old not in captured}
    graph.records[Tracing] = Tracing(_numbered(made), _numbered(captured))
    return graph


def _numbered(places: Mapping[Tensor, Tensor]) -> Places:
    return {(old.node.number, old.index): now for old, now in places.items()}


def _nodes_inside(
    roots: Iterable[Tensor], mark: int, given: set[Tensor], found: dict[Tensor, Tensor]
) -> list[Node]:
    """Return the nodes of a body in order; tensors from outside map to placeholders."""
    order: list[Node] = []
    done: set[Node] = set()
    stack = [(tensor, False) for tensor in reversed(list(roots))]
    while stack:
        tensor, expanded = stack.pop()
        if expanded:
            order.append(tensor.node)
            continue
        if tensor in given or tensor in found or tensor.node in done:
            continue
        if not _belongs(tensor, mark):
            name = f"capture_{len(found)}"
            found[tensor] = placeholder(tensor.type, name)
            continue
        done.add(tensor.node)
        stack.append((tensor, True))
        stack.extend((t, False) for t in reversed(tensor.inputs))
    return order


def _belongs(tensor: Tensor, mark: int) -> bool:
    """Whether a body makes the tensor itself."""
    if isinstance(tensor, Constant):
        return True
    if isinstance(tensor.op.code, Leaf):
        return False
    return tensor.node.number > mark or _is_free(tensor)


def _is_free(tensor: Tensor) -> bool:
    """Whether a tensor repeats a constant, an index or a size, which costs nothing."""
    while isinstance(tensor.op.code, View) and len(tensor.inputs) == 1:
        tensor = tensor.inputs[0]
    return isinstance(tensor, Constant) or tensor.op.code.kind.counted
