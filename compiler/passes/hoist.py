"""Loop-invariant code motion out of loops.

``loop(x: f(w, x)) = loop(x, v: v ..., v = g(w))``: what depends on captures only is
computed once, before the loop, and captured itself. A view of a capture stays inside,
where it costs nothing, unless a product reads it: then its copy is made once, or the
view cancels against one outside.

What can fail stays where it is, since a loop without steps must not fail; so do bodies
of branches, which may not run at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.compiler.passes.body_parts import placeholder
from staticgrad.ir.graph import (
    Graph,
    Rule,
    apply_multi,
    rewrite,
    rewritten,
    topological,
)
from staticgrad.ir.node import Input, Node, Tensor, seen_through
from staticgrad.ir.op import Control, Leaf, Matmul, MatmulAdd, can_fail


def hoist(graph: Graph) -> Graph:
    """Hoist ``loop(x: f(w, x)) = loop(x, v: v ...), v = g(w)``."""
    return rewrite(graph, _RULE)


def _hoisted(node: Node, inputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
    code = node.op.code
    if not isinstance(code, Control) or code.form not in ("loop", "repeat"):
        return None
    first = 1 if code.form == "loop" else 0
    ahead = first + node.attrs["carries"] + node.attrs.get("sequences", 0)
    body = node.graphs[-1]
    moved = _frontier(body, set(body.inputs[ahead:]))
    if not moved:
        return None
    outside: dict[Tensor, Tensor] = dict(
        zip(body.inputs[ahead:], inputs[ahead - first :], strict=True)
    )
    nodes = topological(moved)
    above = rewritten(nodes, lambda _, __: None, outside, nested=False)
    names = {leaf.name for leaf in body.inputs}
    inner = {t: placeholder(t.type, "hoisted", names) for t in moved}
    graphs = [_with(body, inner)]
    if code.form == "repeat":
        own = [placeholder(t.type, "hoisted", names) for t in moved]
        asked = node.graphs[0]
        graphs.insert(0, Graph.closed((*asked.inputs, *own), asked.outputs))
    return apply_multi(
        node.op, *inputs, *(above[t] for t in moved), graphs=tuple(graphs), **node.attrs
    )


_RULE: Rule = _hoisted


def _with(body: Graph, inner: dict[Tensor, Tensor]) -> Graph:
    nodes = topological(body.outputs, inner)
    new = rewritten(nodes, lambda _, __: None, inner, nested=False)
    outputs = [new.get(t, t) for t in body.outputs]
    return Graph.closed((*body.inputs, *inner.values()), outputs)


def _frontier(body: Graph, captures: set[Tensor]) -> list[Tensor]:
    """Return loop-invariant tensors that others read, without free ones."""
    fixed = set(captures)
    found: dict[Tensor, None] = {}
    for node in body.nodes:
        if _is_fixed(node, fixed):
            fixed.update(node.outputs)
            continue
        for tensor in node.inputs:
            if tensor in fixed and _is_worth(tensor, node, captures):
                found[_moved(tensor, node)] = None
    for tensor in body.outputs:
        if tensor in fixed and _is_worth(tensor, None, captures):
            found[_moved(tensor, None)] = None
    return list(found)


def _is_fixed(node: Node, fixed: set[Tensor]) -> bool:
    code = node.op.code
    if code.kind.stays or can_fail(code) or not node.inputs:
        return False
    some = any(t in fixed for t in node.inputs)
    return some and all(t in fixed or _is_number(t) for t in node.inputs)


def _is_number(tensor: Tensor) -> bool:
    return (
        not tensor.node.inputs
        and isinstance(tensor.op.code, Leaf)
        and not isinstance(tensor, Input)
    )


def _reads_memory(node: Node | None) -> bool:
    return node is not None and isinstance(node.op.code, Matmul | MatmulAdd)


def _is_worth(tensor: Tensor, reader: Node | None, captures: set[Tensor]) -> bool:
    return _moved(tensor, reader) not in captures


def _moved(tensor: Tensor, reader: Node | None) -> Tensor:
    """Return `tensor`, or the base of a view that should stay inside."""
    return tensor if _reads_memory(reader) else seen_through(tensor)
