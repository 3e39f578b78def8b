"""Forward mode: tangents propagated from inputs to results.

The nodes are walked once, in topological order. The tangent of a node's output follows
from those of its inputs, by the first of these that applies:

* the op's own ``jvp``;
* the kind: moves and sums apply the op itself to the tangents, a product takes the sum
  over its factors;
* the vjp of an elementwise op, whose Jacobian is diagonal: with the tangent for the
  cotangent it is the tangent of the output;
* the vjp of a reduction of one input, with ones for the cotangent: the slopes by which
  the tangents are multiplied before they are summed;
* otherwise the vjp is transposed: it is linear in the cotangent, so its own vjp maps
  tangents of the inputs to the tangent of the output.

Source of the last: Townsend, "A new trick for calculating Jacobian vector products"
(2017), https://j-towns.github.io/2017/06/12/A-new-trick.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from staticgrad.control.body_derivatives import Inside
from staticgrad.differentiate.forward_control import control_tangents
from staticgrad.differentiate.reverse import filled, pulled_back, total, vjp_of, zeros
from staticgrad.differentiate.stable_forms import KEEP
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import apply, apply_multi, deriving, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise
from staticgrad.ir.source import at
from staticgrad.ir.types import is_float
from staticgrad.ops.guarded import guarded_multiply
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.named import named

Tangents: TypeAlias = Sequence[Tensor | None]


def pushed_forward(
    nodes: Sequence[Node], seeds: Mapping[Tensor, Tensor], inside: Inside
) -> dict[Tensor, Tensor]:
    """Return the tangents of all that depends on the keys of `seeds`, included.

    `seeds` holds tangents of tensors that `nodes` compute. A tensor that depends on
    others of them gets the sum of its seed and of the tangent that they cause. `inside`
    has the rules for bodies of control flow.
    """
    found: dict[Tensor, Tensor] = {}
    with deriving() as derive_from:
        for node in nodes:
            derive_from(node)
            tangents = _outputs(node, [found.get(t) for t in node.inputs], inside)
            for tensor, tangent in zip(node.outputs, tangents, strict=True):
                parts = (seeds.get(tensor), tangent)
                summed = total([part for part in parts if part is not None])
                if summed is not None:
                    found[tensor] = summed
    return found


def _outputs(node: Node, tangents: Tangents, inside: Inside) -> Tangents:
    """Return the tangent of each output of `node`; None where it is zero."""
    nothing = [None] * len(node.outputs)
    if node.op.vjp is None or all(t is None for t in tangents):
        return nothing
    if not any(is_float(t.dtype) for t in node.outputs):
        return nothing
    results = _by_rule(node, tangents, inside)
    return [_checked(node, *pair) for pair in zip(node.outputs, results, strict=True)]


def _checked(node: Node, y: Tensor, tangent: Tensor | None) -> Tensor | None:
    if tangent is None:
        return None
    if isinstance(node.op.code, Elementwise):
        tangent = broadcasted(tangent, y.shape)
    if (tangent.shape, tangent.dtype) != (y.shape, y.dtype):
        raise CompilerBug(
            f"the jvp of {node.op.name} requires a tangent of {y.type}, got "
            f"{tangent.type}{at(node.source)}"
        )
    return tangent


def _by_rule(node: Node, tangents: Tangents, inside: Inside) -> Tangents:
    if node.graphs:
        return control_tangents(node, tangents, inside)
    rule = node.op.tangent
    if callable(rule):
        return _own_rule(node, tangents)
    if rule == "transposed":
        return _transposed(node, tangents, inside)
    return RULES[rule](node, tangents)


def _own_rule(node: Node, tangents: Tangents) -> Tangents:
    assert callable(node.op.jvp)
    if len(node.outputs) > 1:
        results: Tangents = node.op.jvp(
            tuple(tangents), node.outputs, *node.inputs, **node.attrs
        )
        return results
    return (node.op.jvp(tuple(tangents), *node.outputs, *node.inputs, **node.attrs),)


def _linear(node: Node, tangents: Tangents) -> Tangents:
    """Push tangents through a linear op: ``f(t)``, with zeros for missing ones."""
    inputs = [
        t if t is not None else zeros(x) if is_float(x.dtype) else x
        for x, t in zip(node.inputs, tangents, strict=True)
    ]
    return apply_multi(node.op, *inputs, graphs=node.graphs, **node.attrs)


def _multilinear(node: Node, tangents: Tangents) -> Tangents:
    """Push tangents through a multilinear op: ``f(t1, x2) + f(x1, t2)``."""
    terms = []
    for place, tangent in enumerate(tangents):
        if tangent is not None:
            inputs = [*node.inputs[:place], tangent, *node.inputs[place + 1 :]]
            terms.append(apply(node.op, *inputs, **node.attrs))
    return (total(terms),)


def _diagonal(node: Node, tangents: Tangents) -> Tangents:
    """The sum over the inputs of dy/dx_i t_i, each what the vjp gives for g = t_i."""
    shape = node.outputs[0].shape
    terms = []
    for place, tangent in enumerate(tangents):
        if tangent is None:
            continue
        part = vjp_of(node, [broadcasted(tangent, shape)])[place]
        if part is not None:
            terms.append(part)
    return (total(terms),)


def _slopes(node: Node, tangents: Tangents) -> Tangents:
    """``sum(dy/dx * t)`` over the axes; a slope of 0 wins over an infinite tangent."""
    (slopes,) = vjp_of(node, [filled(node.outputs[0], 1)])
    (tangent,) = tangents
    if slopes is None or tangent is None:
        return (None,)
    product = guarded_multiply(slopes, tangent)
    return (named("reduce_sum", product, axes=node.attrs["axes"]),)


def _transposed(node: Node, tangents: Tangents, inside: Inside) -> Tangents:
    """Return the vjp of ``g -> vjp(g)`` at the tangents."""
    dummies = [
        apply(KEEP, zeros(y)) if is_float(y.dtype) else None for y in node.outputs
    ]
    pulled = vjp_of(node, dummies)
    pairs = [
        (result, tangent)
        for result, tangent in zip(pulled, tangents, strict=True)
        if result is not None and tangent is not None
    ]
    seeds: dict[Tensor, Tensor] = {}
    for result, tangent in pairs:
        known = seeds.get(result)
        seeds[result] = tangent if known is None else named("add", known, tangent)
    wanted = {dummy for dummy in dummies if dummy is not None}
    nodes = topological(seeds, set(node.inputs))
    found = pulled_back(nodes, seeds, wanted, inside)
    return [None if dummy is None else found.get(dummy) for dummy in dummies]


RULES: dict[str, Callable[[Node, Tangents], Tangents]] = {
    "linear": _linear,
    "multilinear": _multilinear,
    "diagonal": _diagonal,
    "slopes": _slopes,
}
