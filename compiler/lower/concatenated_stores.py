"""Placement of kernels' results into a larger tensor, without a copy.

A piece of a concatenation or a padded tensor that a loop nest makes, and that nothing
else reads, is stored straight into its region of the result. Where the rest has a value
only the margins are filled. The base of a scatter is stored where the result lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.fuse.groups import Group
from staticgrad.compiler.kernel_ir.buffers import StoreRegion
from staticgrad.compiler.kernel_ir.layouts import awaited, base_of, is_view, layout_of
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout, Piece, Place, Scatter
from staticgrad.ir.size import Dim, exact_divide, product


@dataclass(frozen=True, slots=True)
class Margin:
    """Margin of a padded tensor before or behind the piece, along one axis."""

    axis: int
    start: Dim
    size: Dim


def regions(
    groups: Sequence[Group], graph: Graph, roots: Collection[Tensor]
) -> dict[Tensor, StoreRegion]:
    """Return the tensors that kernels can write into the result of another node."""
    uses = Counter(base_of(t) for node in graph.nodes for t in node.inputs)
    uses.update(roots)
    made = {
        tensor
        for group in groups
        if group.kind == "loop"
        for node in group.nodes
        if node not in group.gathered
        for tensor in node.outputs
    }
    found: dict[Tensor, StoreRegion] = {}
    for group in groups:
        for node in group.nodes:
            if group.kind == "single" and isinstance(node.op.code, Place):
                found.update(_of_place(node, made, uses))
            if group.kind == "single" and isinstance(node.op.code, Scatter):
                base = node.inputs[0]
                if base in made and uses[base] == 1 and not group.late:
                    whole = Layout.contiguous(base.shape)
                    found[base] = StoreRegion(node, whole)
    return found


def _of_place(
    node: Node, made: Collection[Tensor], uses: Mapping[Tensor, int]
) -> dict[Tensor, StoreRegion]:
    pieces = pieces_of(node)
    if not _are_apart(node, pieces):
        return {}
    found = {}
    for piece in pieces:
        tensor = node.inputs[piece.input]
        base = base_of(tensor)
        own = _own_layout(tensor, piece.region)
        if base in made and own is not None and _is_used_once(tensor, uses):
            found[base] = StoreRegion(node, own)
    return found


def _is_used_once(tensor: Tensor, uses: Mapping[Tensor, int]) -> bool:
    """Whether nothing else reads what `tensor` is a view of."""
    views = 0
    while is_view(tensor):
        if uses[tensor]:
            return False  # a result
        views += 1
        tensor = tensor.inputs[0]
    return uses[tensor] == views + 1


def _own_layout(tensor: Tensor, region: Layout) -> Layout | None:
    """Return `region` of a tensor for its base, if only axes of size 1 differ."""
    base = base_of(tensor)
    if base is tensor:
        return region
    sides = [n for n in tensor.shape if n != 1], [n for n in base.shape if n != 1]
    if sides[0] != sides[1] or awaited(tensor) or not layout_of(tensor).is_contiguous:
        return None
    pairs = zip(region.shape, region.strides, strict=True)
    strides = iter([stride for n, stride in pairs if n != 1])
    own = tuple(0 if n == 1 else next(strides) for n in base.shape)
    return Layout(base.shape, own, region.offset)


def pieces_of(node: Node) -> Sequence[Piece]:
    """Return the pieces of a Place node."""
    code = node.op.code
    types = tuple(t.type for t in node.inputs)
    if not isinstance(code, Place):
        return ()
    return code.pieces(node.types[0].shape, *types, **node.attrs)


def _are_apart(node: Node, pieces: Sequence[Piece]) -> bool:
    """Whether every element is written once: by a piece, or by a margin."""
    shape = node.types[0].shape
    if margins(node) is not None:
        return True
    code = node.op.code
    if not isinstance(code, Place) or code.fill(**node.attrs) is not None:
        return False
    covered: Dim = 0
    for piece in pieces:
        covered = covered + product(piece.region.shape)
    return covered == product(shape)


def margins(node: Node) -> list[Margin] | None:
    """Return the margins of the result beside its one piece; None if it is no slab."""
    code, shape = node.op.code, node.types[0].shape
    pieces = pieces_of(node)
    if not isinstance(code, Place) or len(pieces) != 1:
        return None
    region = pieces[0].region
    if len(region.shape) != len(shape):
        return None
    plain = Layout.contiguous(shape)
    axes = [a for a, n in enumerate(shape) if n != region.shape[a]]
    if code.fill(**node.attrs) is None or region.strides != plain.strides:
        return None
    if len(axes) != 1:
        return None
    (axis,) = axes
    low = exact_divide(region.offset, plain.strides[axis])
    if low is None:
        return None
    behind = low + region.shape[axis]
    both = (Margin(axis, 0, low), Margin(axis, behind, shape[axis] - behind))
    return [margin for margin in both if margin.size != 0]
