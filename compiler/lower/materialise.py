"""Materialisation: copies where a tensor needs another layout in memory.

``y = view(x)``  ->  ``y = view(copy(x))``   where no strides express the view
``matmul(x, y)`` ->  ``matmul(copy(x), y)``  where BLAS cannot read x
outputs and new values of leaves that are views or leaves become copies, unless an
output is all of what a node computes, in another shape. So does a new value that
anything else needs, or that reads its leaf in another order: afterwards the new value
of a leaf can be written straight into the leaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import is_

from staticgrad.compiler.conv.convolution_layout import readable
from staticgrad.compiler.fuse.groups import read_axes
from staticgrad.compiler.kernel_ir.layouts import (
    awaited,
    base_of,
    is_free,
    is_view,
    layout_over,
)
from staticgrad.ir.graph import Graph, Update, infer, rebuilt
from staticgrad.ir.kind import Reads
from staticgrad.ir.node import Constant, Input, Node, Stored, Tensor
from staticgrad.ir.op import (
    OPS,
    Elementwise,
    Layout,
    Leaf,
    Matmul,
    MatmulAdd,
    Position,
    Random,
    Scatter,
    View,
)
from staticgrad.ir.size import Dim, Shape, Size, product


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrix as BLAS reads it: leading dimension, transposition, batch stride."""

    transposed: bool
    ld: Dim
    offset: Dim
    batch_stride: Dim


def copied(tensor: Tensor) -> Tensor:
    """Return a node that copies `tensor`, with its line."""
    op = OPS["copy"]
    types = infer(op, (tensor.type,), {})
    node = tensor.node
    return Node(op, (tensor,), {}, types, scope=node.scope, source=node.source).outputs[
        0
    ]


def materialise(graph: Graph) -> Graph:
    """Insert copies where memory needs them; see the module docstring."""
    new: dict[Tensor, Tensor] = {}
    for node in graph.nodes:
        wanted = tuple([_input(node, i, new[t]) for i, t in enumerate(node.inputs)])
        same = all(map(is_, wanted, node.inputs))
        kept = node if same else rebuilt(node, wanted)
        new.update(zip(node.outputs, kept.outputs, strict=True))
    replaced = {leaf for leaf, _ in graph.updates}
    updates = tuple((leaf, new[t]) for leaf, t in graph.updates)
    taken = Counter(base_of(new[t]) for t in dict.fromkeys(graph.outputs))
    taken.update(value for _, value in updates)
    outputs = tuple(
        copied(new[t]) if t in replaced else _output(new[t], taken)
        for t in graph.outputs
    )
    return Graph.closed(graph.inputs, outputs, _own(outputs, updates))


def _input(node: Node, position: int, tensor: Tensor) -> Tensor:
    reads = node.op.code.kind.reads
    fits = FITS[reads[min(position, len(reads) - 1)]]
    return tensor if fits(node, position, tensor) else copied(tensor)


def lies_whole(tensor: Tensor) -> bool:
    """Whether the tensor is all of its base's memory, in C order."""
    if is_made_in_loops(tensor):
        return False
    base = base_of(tensor)
    layout = layout_over(tensor, Layout.contiguous(base.shape))
    same = layout is not None and layout.is_contiguous
    return same and product(tensor.shape) == product(base.shape)


def has_layout(node: Node, tensor: Tensor) -> bool:
    """Whether strides express the view `node` of `tensor`."""
    base, code = base_of(tensor), node.op.code
    start = Layout.contiguous(base.shape)
    if isinstance(base.op.code, Position):
        unit: list[Dim] = [0] * base.ndim
        unit[base.node.attrs["axis"]] = 1
        start = Layout(base.shape, tuple(unit))
    layout = layout_over(tensor, start)
    if layout is None or not isinstance(code, View):
        return False
    return code.of(layout, node.types[0].shape, node.attrs) is not None


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements lie one after the other, in C order."""
    if is_made_in_loops(tensor):
        return False
    layout = layout_over(tensor, Layout.contiguous(base_of(tensor).shape))
    if layout is None:
        return False
    return Layout(layout.shape, layout.strides).is_contiguous


def is_made_in_loops(tensor: Tensor) -> bool:
    """Whether a value lies nowhere in memory: indices along an axis."""
    return is_free(tensor) and not isinstance(base_of(tensor), Constant)


def _output(tensor: Tensor, taken: Counter[Tensor]) -> Tensor:
    """Return an output as a view where it shows all of a computed tensor."""
    if not is_view(tensor):
        return copied(tensor) if is_made_in_loops(tensor) else tensor
    base = base_of(tensor)
    computed = not isinstance(base.op.code, Leaf) and not awaited(tensor)
    is_renamed = computed and taken[base] == 1 and lies_whole(tensor)
    return tensor if is_renamed else copied(tensor)


def _own(outputs: tuple[Tensor, ...], updates: tuple[Update, ...]) -> list[Update]:
    """Return updates whose new values are written by a node with no other use."""
    uses = Graph.closed((), outputs, updates).uses()
    plain = [
        (leaf, new if _is_own(leaf, new, uses) else copied(new))
        for leaf, new in updates
    ]
    return _untangled(plain)


def _is_own(leaf: Stored, new: Tensor, uses: Counter[Tensor]) -> bool:
    if is_view(new) or uses[new] != 1 or isinstance(new.op.code, Leaf):
        return False
    if isinstance(new.op.code, Scatter | MatmulAdd):
        base, *others = new.inputs
        return base is leaf and all(base_of(t) is not leaf for t in others)
    if isinstance(new.op.code, Matmul):
        # Not into stored leaves: on a GPU a product cannot look at the status first.
        is_carry = isinstance(leaf, Input)
        return is_carry and all(base_of(t) is not leaf for t in new.inputs)
    if not isinstance(new.op.code, Elementwise | Random):
        return False
    counter = iter(range(new.ndim))
    axes = tuple(None if n == 1 else next(counter) for n in new.shape)
    reads = {
        read_axes(new.node, position, axes)
        for position, tensor in enumerate(new.inputs)
        if base_of(tensor) is leaf
    }
    return reads <= {axes}


def _untangled(updates: list[Update]) -> list[Update]:
    """Copy one of two new values of which one reads the other's leaf."""
    leaves = {leaf for leaf, _ in updates}
    result: list[Update] = []
    for leaf, new in updates:
        read = {base_of(t) for t in new.inputs}
        tangled = any(other in leaves and other is not leaf for other in read)
        result.append((leaf, copied(new) if tangled else new))
    return result


def matrix_of(tensor: Tensor) -> Matrix | None:
    """Return the last two axes as BLAS reads them, with batch axes in one stride."""
    if is_made_in_loops(tensor):
        return None
    whole = base_of(tensor).shape
    layout = layout_over(tensor, Layout.contiguous(whole))
    if layout is None:
        return None
    batch = _batch_stride(layout)
    rows, columns = layout.shape[-2:]
    down, right = layout.strides[-2:]
    if batch is None:
        return None
    if 0 in layout.shape:
        return Matrix(False, 1 if columns == 0 else columns, layout.offset, batch)
    if right == 1 or columns == 1:
        transposed, ld = False, columns if rows == 1 else down
    elif down == 1 or rows == 1:
        transposed, ld = True, rows if columns == 1 else right
    else:
        return None
    forward = _is_forward(ld, (whole, layout.shape))
    return Matrix(transposed, ld, layout.offset, batch) if forward else None


def _batch_stride(layout: Layout) -> Dim | None:
    """Return the one stride that walks all batch axes; None if there is none."""
    step: Dim | None = None
    extent: Dim = 0
    axes = zip(layout.shape[:-2], layout.strides[:-2], strict=True)
    for size, stride in reversed(list(axes)):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != extent:
            return None
        extent = stride * size
    return 0 if step is None else step


def _is_forward(stride: Dim, shapes: Iterable[Shape]) -> bool:
    """Whether `stride` is positive wherever the sizes of `shapes` are.

    ``n - 1`` is, as the row of a matrix that has n - 1 columns.
    """
    if not isinstance(stride, Size):
        return stride > 0
    if all(count > 0 for _, count in stride.terms):
        return True
    rows = (product(shape[axis:]) for shape in shapes for axis in range(len(shape)))
    return any(_times(stride, row) > 0 for row in rows)


def _times(stride: Size, row: Dim) -> int:
    """Return the multiple of `row` that the stride is; 0 if not a whole one."""
    if not isinstance(row, Size):
        return 0
    times = stride.terms[0][1] // row.terms[0][1]
    return times if row * times == stride else 0


FITS: dict[Reads, Callable[[Node, int, Tensor], bool]] = {
    "values": lambda node, position, x: True,
    "memory": lambda node, position, x: not is_made_in_loops(x),
    "strided": lambda node, position, x: has_layout(node, x),
    "matrix": lambda node, position, x: matrix_of(x) is not None,
    "image": lambda *at: not is_made_in_loops(at[2]) and readable(*at),
    "dense": lambda node, position, x: _is_dense(x),
    "whole": lambda node, position, x: lies_whole(x),
}
"""Whether input x of a node is what its kind reads."""
