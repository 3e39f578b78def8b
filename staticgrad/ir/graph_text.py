"""A graph as text, one line per node.

    %0: float32[batch, 64] = input(name='x')  # trainer.py:7
    %1: float32[batch, 64] = tanh(%0)  # trainer.py:41
    return %1
    update w <- %1

Tensors are numbered in topological order, so that equal graphs print equal text. Nested
graphs are printed below their node, indented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Leaf
from staticgrad.ir.storage import Storage

SHOWN_ELEMENTS = 8  # larger constants are shown by shape only


def text(graph: Graph, lines: bool = True) -> str:
    """Return `graph` as text; if not `lines`, without the user's file and line."""
    return "\n".join(_graph_lines(graph, lines))


def _graph_lines(graph: Graph, lines: bool) -> Iterator[str]:
    names: dict[Tensor, str] = {}
    for node in graph.nodes:
        for tensor in node.outputs:
            names[tensor] = f"%{len(names)}"
        yield _node_line(node, names, lines)
        for inner in node.graphs:
            yield "  {"
            yield from ("    " + line for line in _graph_lines(inner, lines))
            yield "  }"
    yield "return " + ", ".join(names[t] for t in graph.outputs)
    for leaf, new in graph.updates:
        yield f"update {leaf.name} <- {names[new]}"


def _node_line(node: Node, names: Mapping[Tensor, str], lines: bool) -> str:
    left = ", ".join(f"{names[t]}: {t.type}" for t in node.outputs)
    args = [names[t] for t in node.inputs]
    args += _attributes(node)
    where = f"  # {node.source}" if lines and node.source is not None else ""
    return f"{left} = {node.op.name}({', '.join(args)}){where}"


def _attributes(node: Node) -> list[str]:
    if isinstance(node.op.code, Leaf) and "name" in node.attrs:
        return [repr(node.attrs["name"])]
    return [
        _value(value) if isinstance(node.op.code, Leaf) else f"{name}={_value(value)}"
        for name, value in sorted(node.attrs.items())
        if not isinstance(value, Storage)
    ]


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.dtype):
        return str(value.name)
    if isinstance(value, tuple):
        inner = ", ".join(_value(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, int | float | str | np.generic):
        return repr(value.item() if isinstance(value, np.generic) else value)
    return str(value)


def _array(array: np.ndarray[Any, Any]) -> str:
    if array.size <= SHOWN_ELEMENTS:
        return str(array.tolist())
    return f"{array.dtype}{list(array.shape)}"
