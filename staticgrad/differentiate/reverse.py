"""Reverse mode: cotangents from the results of a computation back to its inputs.

The nodes are walked once, in reverse topological order, and each op is asked for the
cotangents of its inputs. The rules are made of ops, so the result can be differentiated
again. Broadcast inputs get the sum of their cotangent over the broadcast axes.

Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from staticgrad.control.body_derivatives import Inside, active_tensors
from staticgrad.differentiate.reverse_control import control_cotangents
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import deriving
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise
from staticgrad.ir.size import Shape
from staticgrad.ir.source import at
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named


def pulled_back(
    nodes: Sequence[Node],
    seeds: Mapping[Tensor, Tensor],
    wanted: set[Tensor],
    inside: Inside,
) -> dict[Tensor, Tensor]:
    """Return the cotangents of those of `wanted` that the keys of `seeds` depend on.

    `seeds` holds the cotangents of the results, which `nodes` compute; `inside` has the
    rules for bodies of control flow.
    """
    active = active_tensors(nodes, wanted)
    pending = {y: [seed] for y, seed in seeds.items()}
    found: dict[Tensor, Tensor] = {}
    with deriving() as derive_from:
        for node in reversed(nodes):
            if not any(t in pending and t in active for t in node.outputs):
                continue
            derive_from(node)
            totals = [total(pending.pop(t, [])) for t in node.outputs]
            for tensor, g in zip(node.outputs, totals, strict=True):
                if g is not None and tensor in wanted:
                    found[tensor] = g
            for x, g in _cotangents(node, totals, active, inside):
                pending.setdefault(x, []).append(g)
    return found


def total(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the sum of tensors of one type; None if there are none."""
    if not parts:
        return None
    result = parts[0]
    for part in parts[1:]:
        result = named("add", result, part)
    return result


def vjp_of(node: Node, totals: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the cotangents of the inputs as the op's vjp rule gives them."""
    assert node.op.vjp is not None
    single = len(node.outputs) == 1
    g: Any = totals[0] if single else tuple(totals)
    y: Any = node.outputs[0] if single else node.outputs
    results: Sequence[Tensor | None] = node.op.vjp(g, y, *node.inputs, **node.attrs)
    if len(results) != len(node.inputs):
        raise CompilerBug(
            f"the vjp of {node.op.name} requires {len(node.inputs)} results, got "
            f"{len(results)}{at(node.source)}"
        )
    return results


def _cotangents(
    node: Node, totals: Sequence[Tensor | None], active: set[Tensor], inside: Inside
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the cotangents of the node's active inputs, each of its input's type."""
    asked = node.op.reached or any(t in active for t in node.inputs)
    if node.op.vjp is None or not asked:
        return
    if node.graphs:
        results = control_cotangents(node, totals, active, inside)
    else:
        results = vjp_of(node, totals)
    for x, result in zip(node.inputs, results, strict=True):
        if result is not None and x in active:
            yield x, _fitted(node, x, result)


def _fitted(node: Node, x: Tensor, g: Tensor) -> Tensor:
    """Return `g` summed to the shape of `x` where the op broadcasts; check its type."""
    shape = node.outputs[0].shape
    if isinstance(node.op.code, Elementwise) and (g.shape, x.shape) != (shape, shape):
        g = unbroadcast(broadcasted(g, shape), x.shape)
    if (g.shape, g.dtype) != (x.shape, x.dtype):
        raise CompilerBug(
            f"the vjp of {node.op.name} requires a cotangent of {x.type}, got {g.type}"
            f"{at(node.source)}"
        )
    return g


def unbroadcast(g: Tensor, shape: Shape) -> Tensor:
    """Sum `g` over the axes along which `shape` was broadcast to that of `g`."""
    added = g.ndim - len(shape)
    pairs = zip(g.shape[added:], shape, strict=True)
    grown = [added + axis for axis, (n, m) in enumerate(pairs) if n != m]
    axes = (*range(added), *grown)
    if axes:
        g = named("reduce_sum", g, axes=axes)
    return reshaped(g, shape)


def zeros(x: Tensor) -> Tensor:
    """Return zeros of the type of `x`."""
    return filled(x, 0)


def filled(x: Tensor, value: float) -> Tensor:
    """Return `value` everywhere, of the type of `x`."""
    return broadcasted(frozen(x.dtype.type(value)), x.shape)
