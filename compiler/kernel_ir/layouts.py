"""Layouts of a node's inputs: through views, and aligned with its own axes.

A tensor made by View nodes is read from its *base*, the first tensor that is not a
view, through the composed Layout. Where every axis of the tensor is one axis of the
base, or none, the view is *clean* and a loop nest can use the base's value directly.
"""

from __future__ import annotations

from staticgrad.errors import CompilerBug
from staticgrad.ir.expression import Arg
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import After, Elementwise, Gather, Layout, Random, Reduce, View
from staticgrad.ir.size import Dim, Shape, Size

FREE_DEPTH = 4  # operations on free scalars that each kernel repeats


AxisMap = tuple[int | None, ...]

COPIED = Arg(0)


def is_view(tensor: Tensor) -> bool:
    """True if the tensor is another one, read differently."""
    return tensor.node.op.code.kind.is_view


def base_of(tensor: Tensor) -> Tensor:
    """The first tensor below `tensor` that is not a view."""
    while tensor.node.op.code.kind.is_view:
        tensor = tensor.node.inputs[0]
    return tensor


def awaited(tensor: Tensor) -> list[Tensor]:
    """Return the bases of tensors that have to be ready before `tensor` is read."""
    found: list[Tensor] = []
    while is_view(tensor):
        if isinstance(tensor.op.code, After):
            found.append(base_of(tensor.inputs[1]))
        tensor = tensor.inputs[0]
    return found


def layout_over(tensor: Tensor, base: Layout) -> Layout | None:
    """Return the layout of `tensor` over its base's memory, given by `base`."""
    chain: list[Node] = []
    while is_view(tensor):
        chain.append(tensor.node)
        tensor = tensor.inputs[0]
    layout: Layout | None = base
    for node in reversed(chain):
        code = node.op.code
        if isinstance(code, After):
            continue
        if layout is None or not isinstance(code, View):
            return None
        layout = code.of(layout, node.types[0].shape, node.attrs)
    return layout


def layout_of(tensor: Tensor) -> Layout:
    """Return the layout of `tensor` over its base, whose buffer is in C order."""
    layout = layout_over(tensor, Layout.contiguous(base_of(tensor).shape))
    if layout is None:
        raise CompilerBug(f"{tensor} has no layout; it should have been copied")
    return layout


def base_axes(tensor: Tensor) -> AxisMap | None:
    """Return each axis's axis in the base (None: repeated or of size 1).

    None as a whole if the view is not clean.
    """
    if not is_view(tensor):
        return tuple(None if n == 1 else a for a, n in enumerate(tensor.shape))
    base = base_of(tensor)
    marks = tuple(Size.symbol(f"${axis}") for axis in range(base.ndim))
    layout = layout_over(tensor, Layout(base.shape, marks))
    if layout is None or layout.offset != 0:
        return None
    axes: list[int | None] = []
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        if size == 1 or stride == 0:
            axes.append(None)
        elif stride in marks:
            axes.append(marks.index(stride))
        else:
            return None
    used = {axis for axis in axes if axis is not None}
    seen_whole = all(
        tensor.shape[i] == base.shape[axis]
        for i, axis in enumerate(axes)
        if axis is not None
    )
    complete = all(n == 1 or a in used for a, n in enumerate(base.shape))
    return tuple(axes) if seen_whole and complete else None


def loop_shape(node: Node) -> Shape:
    """Return the axes that a loop nest for `node` runs over."""
    if isinstance(node.op.code, Reduce):
        return node.inputs[0].shape
    return node.types[0].shape


def alignment(node: Node, position: int) -> tuple[int, ...] | None:
    """Return, for each axis of input `position`, its axis in ``loop_shape(node)``.

    None where the input is not read element by element and has to lie in memory.
    """
    code, shape = node.op.code, node.inputs[position].shape
    is_key = isinstance(code, Random) and position == 0
    if code.kind.aligned and not is_key:
        missing = len(node.types[0].shape) - len(shape)
        return tuple(range(missing, missing + len(shape)))
    if isinstance(code, Reduce):
        return tuple(range(len(shape)))
    if isinstance(code, Gather) and position == 1:
        start = 0 if node.attrs["pointwise"] else node.attrs["axis"]
        return tuple(range(start, start + len(shape)))
    return None


def gathered_strides(node: Node, index: Tensor, along: Dim) -> list[Dim]:
    """Return the strides that replace those of a Gather's or Scatter's axis.

    The index itself moves the access; the strides left are those of a window.
    """
    if node.attrs["pointwise"]:
        return [0]
    return [0] * index.ndim + ([along] if "window" in node.attrs else [])


def is_free(tensor: Tensor, depth: int = FREE_DEPTH) -> bool:
    """Whether a loop can make the value itself: a number, an index, a size.

    So is what a few elementwise operations make of free scalars, such as 1 / size; a
    copy never is: it says that the value has to lie in memory.
    """
    base = base_of(tensor)
    if isinstance(base, Constant):
        return base.value.size == 1
    if base.op.code.kind.counted:
        return True
    code = base.op.code
    if depth == 0 or base.shape or not isinstance(code, Elementwise) or code.fails:
        return False
    return code.expr != COPIED and all(is_free(t, depth - 1) for t in base.inputs)
