"""Kernels of nodes that are not fused: matrix products, placing, scattering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from staticgrad.compiler.kernel_ir.buffers import Buffers
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    CheckIndex,
    Compute,
    GemmKernel,
    Index,
    Kernel,
    Load,
    LoopKernel,
    Mode,
    Number,
    Operand,
    Statement,
    Store,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, gathered_strides, layout_of
from staticgrad.compiler.kernel_ir.walks import collapse, loops, with_strides
from staticgrad.compiler.lower.concatenated_stores import Margin, margins, pieces_of
from staticgrad.compiler.lower.materialise import matrix_of
from staticgrad.compiler.lower.nest import COMBINED
from staticgrad.errors import CompilerBug
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import Layout, Piece, Place
from staticgrad.ir.size import Dim, Shape, product

BufferOf = Callable[[Tensor], int]


def gemm(node: Node, buffer_of: BufferOf) -> list[Kernel]:
    """Return the kernel of ``C = A @ B``."""
    return [_product(node, node.inputs, buffer_of, "write")]


def gemm_add(node: Node, buffer_of: BufferOf) -> list[Kernel]:
    """Return the kernels of ``C = base`` (unless in place) and ``C = A @ B + C``."""
    base, *factors = node.inputs
    add = _product(node, factors, buffer_of, "update")
    if base_of(base) is base and buffer_of(base) == buffer_of(node.outputs[0]):
        return [add]
    return [_copy(node, base, Layout.contiguous(base.shape), buffer_of), add]


def _product(
    node: Node, factors: Sequence[Tensor], buffer_of: BufferOf, mode: Mode
) -> GemmKernel:
    left, right = factors
    result = node.outputs[0]
    a, b = matrix_of(left), matrix_of(right)
    if a is None or b is None:
        raise CompilerBug(f"{node} reads an input that BLAS cannot")
    m, n = result.shape[-2:]
    batch = product(result.shape[:-2])
    operands = (
        Operand(buffer_of(base_of(left)), "read", result.dtype),
        Operand(buffer_of(base_of(right)), "read", result.dtype),
        Operand(buffer_of(result), mode, result.dtype),
    )
    return GemmKernel(
        name=node.op.name,
        operands=operands,
        m=m,
        n=n,
        k=left.shape[-1],
        transposed=(a.transposed, b.transposed),
        ld=(a.ld, b.ld, n),
        offsets=(a.offset, b.offset, 0),
        batch=batch,
        batch_strides=(a.batch_stride, b.batch_stride, m * n),
        alpha=1.0,
        beta=1.0 if mode == "update" else 0.0,
        sites=(site_of(node),),
    )


def placed(node: Node, buffer_of: Buffers) -> list[Kernel]:
    """The fill, and one copy per piece that its own kernel does not write there."""
    code, result = node.op.code, node.outputs[0]
    assert isinstance(code, Place)
    kernels: list[Kernel] = []
    fill = code.fill(**node.attrs)
    left = margins(node)
    if fill is not None and left is not None:
        kernels += [_margin(node, fill, m, buffer_of(result)) for m in left]
    elif fill is not None:
        kernels.append(_fill(node, fill, buffer_of(result)))
    inside = buffer_of.inside
    rest = [p for p in pieces_of(node) if base_of(node.inputs[p.input]) not in inside]
    while rest:
        beside = [piece for piece in rest if _takes_turns(node, rest[0], piece)]
        pairs = [(node.inputs[piece.input], piece.region) for piece in beside]
        kernels.append(_copies(node, pairs, buffer_of))
        rest = [piece for piece in rest if piece not in beside]
    return kernels


def _takes_turns(node: Node, first: Piece, piece: Piece) -> bool:
    """Whether the elements of two pieces interleave, or the pieces are the same.

    Both are then copied in one loop, whose stores fill memory without gaps.
    """
    if piece is first:
        return True
    shapes = [node.inputs[p.input].shape for p in (first, piece)]
    steps = [
        stride
        for size, stride in zip(shapes[0], first.region.strides, strict=True)
        if size != 1 and isinstance(stride, int)
    ]
    apart = piece.region.offset - first.region.offset
    alike = shapes[0] == shapes[1] and first.region.strides == piece.region.strides
    near = isinstance(apart, int) and steps and abs(apart) < min(map(abs, steps))
    return bool(alike and near)


def scattered(
    node: Node, buffer_of: Buffers, check: Node | None = None
) -> list[Kernel]:
    """Return the kernels that copy the base, unless in place, and combine the updates.

    A base that its own kernel writes there already lies in the result. The index is
    the result of `check`, if that is to be done on the way.
    """
    base = node.inputs[0]
    result = buffer_of(node.outputs[0])
    write = _combined(node, buffer_of, check)
    if base in buffer_of.inside:
        return [write]
    value = uniform(base)
    if value is not None:
        return [_fill(node, value, result), write]
    if base_of(base) is base and buffer_of(base) == result:
        return [write]
    region = Layout.contiguous(base.shape)
    return [_copy(node, base, region, buffer_of), write]


def uniform(tensor: Tensor) -> float | int | bool | None:
    """Return the number that every element of `tensor` is known to be, or None."""
    base = base_of(tensor)
    if not isinstance(base, Constant) or base.value.size != 1:
        return None
    value: float | int | bool = base.value.item()
    return value


def _combined(node: Node, buffer_of: BufferOf, check: Node | None) -> LoopKernel:
    """Return the kernel that combines the updates into the result, in index order."""
    _, index, updates = node.inputs
    result, combine = node.outputs[0], node.attrs["combine"]
    place, tests = (0, ()) if check is None else _checked(check)
    index = index if check is None else check.inputs[0]
    reading, target = _index_strides(node, index), _target(node, place)
    new, dtype = layout_of(updates), result.dtype
    body: list[Statement] = [
        Load(0, Access(0, reading, layout_of(index).offset), index.dtype),
        *tests,
        Load(1, Access(1, new.strides, new.offset), dtype),
    ]
    value = 1
    if combine != "set":
        body += [Load(2, target, dtype), Compute(3, COMBINED[combine], (2, 1), dtype)]
        value = 3
    body.append(Store(target, value))
    operands = (
        Operand(buffer_of(base_of(index)), "read", index.dtype),
        Operand(buffer_of(base_of(updates)), "read", dtype),
        Operand(buffer_of(result), "update", dtype),
    )
    apart = node.attrs["axis"] != 0  # rows ahead of the indexed axis do not meet
    found = _kernel(node, updates.shape, operands, tuple(body), 4, parallel=apart)
    if check is None:
        return found
    return replace(found, sites=(*found.sites, site_of(check)), fails=True)


def _checked(check: Node) -> tuple[int, tuple[Statement, ...]]:
    """Return the checked index of value 0, and the statements that check it."""
    attrs, strides = check.attrs, Layout.contiguous(check.types[0].shape).strides
    where = Index(4, strides)
    return 5, (where, CheckIndex(5, 0, attrs["extent"], 4, 1, attrs["wrap"]))


def _index_strides(node: Node, index: Tensor) -> tuple[Dim, ...]:
    """Return the strides of the index along the axes of the updates."""
    updates = node.inputs[2]
    start = 0 if node.attrs["pointwise"] else node.attrs["axis"]
    strides: list[Dim] = [0] * updates.ndim
    pairs = zip(index.shape, layout_of(index).strides, strict=True)
    for dim, (size, stride) in enumerate(pairs):
        strides[start + dim] = 0 if size == 1 else stride
    return tuple(strides)


def _target(node: Node, place: int) -> Access:
    """Return the access of an update to the result; `place` is its index's value."""
    axis, index = node.attrs["axis"], node.inputs[1]
    strides = list(Layout.contiguous(node.outputs[0].shape).strides)
    along = strides[axis]
    strides[axis : axis + 1] = gathered_strides(node, index, along)
    return Access(2, tuple(strides), 0, (place, along))


def _fill(node: Node, value: float | int | bool, buffer: int) -> LoopKernel:
    result = node.outputs[0]
    plain = Layout.contiguous(result.shape).strides
    body = (Number(0, value, result.dtype), Store(Access(0, plain), 0))
    operands = (Operand(buffer, "write", result.dtype),)
    return _kernel(node, result.shape, operands, body, 1)


def _margin(
    node: Node, value: float | int | bool, margin: Margin, buffer: int
) -> LoopKernel:
    result = node.outputs[0]
    plain = Layout.contiguous(result.shape).strides
    shape = list(result.shape)
    shape[margin.axis] = margin.size
    access = Access(0, plain, margin.start * plain[margin.axis])
    body = (Number(0, value, result.dtype), Store(access, 0))
    operands = (Operand(buffer, "write", result.dtype),)
    return _kernel(node, tuple(shape), operands, body, 1)


def _copy(
    node: Node, source: Tensor, region: Layout, buffer_of: BufferOf
) -> LoopKernel:
    return _copies(node, [(source, region)], buffer_of)


def _copies(
    node: Node, pairs: Sequence[tuple[Tensor, Layout]], buffer_of: BufferOf
) -> LoopKernel:
    """Return copies of sources of one shape to their regions of the result."""
    buffers = list(dict.fromkeys(buffer_of(base_of(source)) for source, _ in pairs))
    dtype, result, loads, stores = pairs[0][0].dtype, len(buffers), [], []
    for value, (source, region) in enumerate(pairs):
        layout, operand = layout_of(source), buffers.index(buffer_of(base_of(source)))
        access = Access(operand, layout.strides, layout.offset)
        loads.append(Load(value, access, dtype))
        stores.append(Store(Access(result, region.strides, region.offset), value))
    operands = [Operand(buffer, "read", dtype) for buffer in buffers]
    operands.append(Operand(buffer_of(node.outputs[0]), "write", dtype))
    body: tuple[Statement, ...] = (*loads, *stores)
    return _kernel(node, pairs[0][0].shape, operands, body, len(pairs))


def _kernel(
    node: Node,
    shape: Shape,
    operands: Sequence[Operand],
    body: tuple[Statement, ...],
    cost: int,
    parallel: bool = True,
) -> LoopKernel:
    axes: tuple[Dim, ...] = shape or (1,)
    if not shape:
        body = with_strides(body, lambda _: (0,))
    nested = loops(range(len(axes)), body)
    joined = axes
    if shape:
        joined, nested, _ = collapse(axes, nested, len(axes))
    return LoopKernel(
        name=node.op.name,
        axes=joined,
        operands=tuple(operands),
        scratch=(),
        body=nested,
        sites=(site_of(node),),
        row_cost=product(joined[1:]) * cost,
        parallel=parallel,
    )
