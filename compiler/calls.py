"""Kernels of nodes that are not fused: matrix products, placing, scattering."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from staticgrad.compiler.collapse import collapse, with_strides
from staticgrad.compiler.kernels import (
    Access,
    Compute,
    GemmKernel,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Site,
    Statement,
    Store,
)
from staticgrad.compiler.layouts import base_of, layout_of
from staticgrad.compiler.materialise import matrix_of
from staticgrad.errors import CompilerBug
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout, Place
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import DType

BufferOf = Callable[[Tensor], int]


def gemm(node: Node, buffer_of: BufferOf) -> list[Kernel]:
    """``C = A @ B``."""
    left, right = node.inputs
    result = node.outputs[0]
    a, b = matrix_of(left), matrix_of(right)
    if a is None or b is None:
        raise CompilerBug(f"{node} reads an input that BLAS cannot")
    m, n = result.shape[-2:]
    batch = product(result.shape[:-2])
    operands = (
        Operand(buffer_of(base_of(left)), "read", result.dtype),
        Operand(buffer_of(base_of(right)), "read", result.dtype),
        Operand(buffer_of(result), "write", result.dtype),
    )
    kernel = GemmKernel(
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
        beta=0.0,
        sites=(_site(node),),
    )
    return [kernel]


def placed(node: Node, buffer_of: BufferOf) -> list[Kernel]:
    """The fill, and one copy per piece."""
    code, result = node.op.code, node.outputs[0]
    if not isinstance(code, Place):
        raise CompilerBug(f"{node} places nothing")
    types = tuple(t.type for t in node.inputs)
    kernels: list[Kernel] = []
    fill = code.fill(**node.attrs)
    if fill is not None:
        kernels.append(_fill(node, fill, buffer_of(result)))
    for piece in code.pieces(result.shape, *types, **node.attrs):
        source = node.inputs[piece.input]
        kernels.append(_copy(node, source, piece.region, buffer_of))
    return kernels


def scattered(node: Node, buffer_of: BufferOf) -> list[Kernel]:
    """Zeros, to which the updates are added in the order of the index."""
    index, updates = node.inputs
    result = node.outputs[0]
    axis, pointwise = node.attrs["axis"], node.attrs["pointwise"]
    shape = updates.shape
    count = 1 if pointwise else index.ndim
    plain = list(Layout.contiguous(result.shape).strides)
    along = plain[axis]
    plain[axis : axis + 1] = [0] * count
    place = layout_of(index)
    start = 0 if pointwise else axis
    reading: list[Dim] = [0] * len(shape)
    for dim, (size, stride) in enumerate(zip(index.shape, place.strides, strict=True)):
        reading[start + dim] = 0 if size == 1 else stride
    new = layout_of(updates)
    target = Access(2, tuple(plain), 0, (0, along))
    dtype = result.dtype
    body: tuple[Statement, ...] = (
        Load(0, Access(0, tuple(reading), place.offset), index.dtype),
        Load(1, Access(1, new.strides, new.offset), dtype),
        Load(2, target, dtype),
        Compute(3, "{0} + {1}", (2, 1), dtype),
        Store(target, 3),
    )
    operands = (
        Operand(buffer_of(base_of(index)), "read", index.dtype),
        Operand(buffer_of(base_of(updates)), "read", dtype),
        Operand(buffer_of(result), "update", dtype),
    )
    add = _kernel(node, shape, operands, body, 4, parallel=False)
    return [_fill(node, _zero(dtype), buffer_of(result)), add]


def _zero(dtype: DType) -> float | int | bool:
    zero: float | int | bool = dtype.type(0).item()
    return zero


def _site(node: Node) -> Site:
    return Site(node.op.name, node.source, node.scope)


def _fill(node: Node, value: float | int | bool, buffer: int) -> LoopKernel:
    result = node.outputs[0]
    plain = Layout.contiguous(result.shape).strides
    body = (Number(0, value, result.dtype), Store(Access(0, plain), 0))
    operands = (Operand(buffer, "write", result.dtype),)
    return _kernel(node, result.shape, operands, body, 1)


def _copy(
    node: Node, source: Tensor, region: Layout, buffer_of: BufferOf
) -> LoopKernel:
    layout, dtype = layout_of(source), source.dtype
    body = (
        Load(0, Access(0, layout.strides, layout.offset), dtype),
        Store(Access(1, region.strides, region.offset), 0),
    )
    operands = (
        Operand(buffer_of(base_of(source)), "read", dtype),
        Operand(buffer_of(node.outputs[0]), "write", dtype),
    )
    return _kernel(node, source.shape, operands, body, 1)


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
    nested = body
    for axis in reversed(range(len(axes))):
        nested = (Loop(axis, nested),)
    joined = axes
    if shape:
        joined, nested, _ = collapse(axes, nested, len(axes))
    return LoopKernel(
        name=node.op.name,
        axes=joined,
        operands=tuple(operands),
        scratch=(),
        body=nested,
        sites=(_site(node),),
        row_cost=product(joined[1:]) * cost,
        parallel=parallel,
    )
