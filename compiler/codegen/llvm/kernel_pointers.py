"""Raw pointers in kernels: typed addresses, loads and stores.

Elements of float16 and bfloat16 are float32 in registers: see half_precision.py.

A pointer is an int64 whose Numba type knows the element type and the *scope*: which
memory it points into. Scope 0 is all that a kernel only reads; every operand that it
writes, and every scratch area, has a scope of its own. Loads and stores tell LLVM
(alias.scope and noalias) that different scopes are different memory, so loops vectorise
without run-time checks. What is read and written in place is one operand, hence one
scope.

Indexing an array instead would cost 22 times as much on a small kernel (Numba's test
for negative indices).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from staticgrad.compiler.codegen.llvm.half_precision import NARROW, WIDEN
from staticgrad.compiler.codegen.llvm.intrinsics import lowers

STOP = 6
"""The word of a status that holds the address of the run's stop cell."""

_LONG = ir.IntType(64)
_SHORT = ir.IntType(16)
_BYTE = ir.IntType(8)


class Pointer(types.Type):
    """Numba's type of an address of elements.

    `dtype` is that of the elements in registers, `stored` its name in memory.
    """

    def __init__(self, stored: str, scope: int, scopes: int) -> None:
        self.dtype = types.float32 if stored in WIDEN else getattr(types, stored)
        self.stored = stored
        self.scope = scope
        self.scopes = scopes
        super().__init__(name=f"Pointer({stored}, {scope} of {scopes})")


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Pointer) -> None:
        super().__init__(manager, kind, _LONG)


def memory_type(pointer: Pointer) -> Any:
    """Return the LLVM type of an element in memory: a bool is one byte."""
    dtype = pointer.dtype
    if pointer.stored in WIDEN:
        return _SHORT
    if dtype == types.boolean:
        return _BYTE
    if isinstance(dtype, types.Integer):
        return ir.IntType(dtype.bitwidth)
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def _pointer(dtype: Any, scope: Any, scopes: Any) -> Pointer:
    return Pointer(dtype.literal_value, scope.literal_value, scopes.literal_value)


def _word(b: Any, table: Any, position: Any) -> Any:
    place = b.gep(b.inttoptr(table, _LONG.as_pointer()), [position], inbounds=True)
    return b.load(place)


@lowers(types.int64(types.intp, types.intp))
def word(b: Any, table: Any, position: Any) -> Any:
    """``word(table, k)``: the int64 number k of the table at that address."""
    return _word(b, table, position)


@lowers(types.int64(types.intp, types.int64, types.int64))
def unless_stopped(b: Any, context: Any, stopped: Any, going: Any) -> Any:
    """``unless_stopped(context, a, b)``: b, or a if the run has to stop.

    The status names the cell that says so, which others write at any time.
    """
    status = _word(b, context, ir.Constant(_LONG, 0))
    cell = _word(b, status, ir.Constant(_LONG, STOP))
    place = b.inttoptr(cell, _LONG.as_pointer())
    set_ = b.icmp_signed(
        "!=", b.load_atomic(place, "monotonic", 8), ir.Constant(_LONG, 0)
    )
    return b.select(set_, stopped, going)


@intrinsic(prefer_literal=True)
def operand(
    typing: Any, operands: Any, position: Any, dtype: Any, scope: Any, scopes: Any
) -> Any:
    """Emit ``operand(operands, k, dtype, scope, scopes)``: the pointer to operand k."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return _word(b, args[0], ir.Constant(_LONG, position.literal_value))

    kind = _pointer(dtype, scope, scopes)
    return kind(operands, position, dtype, scope, scopes), generate


@intrinsic(prefer_literal=True)
def scratch(
    typing: Any, context: Any, offset: Any, dtype: Any, scope: Any, scopes: Any
) -> Any:
    """Emit ``scratch(context, offset, dtype, scope, scopes)``, of this thread."""

    def generate(_context: Any, b: Any, signature: Any, args: Any) -> Any:
        base = _word(b, args[0], ir.Constant(_LONG, 1))
        if isinstance(offset, types.IntegerLiteral):
            return b.add(base, ir.Constant(_LONG, offset.literal_value))
        return b.add(base, args[1])

    kind = _pointer(dtype, scope, scopes)
    return kind(context, offset, dtype, scope, scopes), generate


@intrinsic
def shifted(typing: Any, pointer: Any, count: Any) -> Any:
    """Emit ``shifted(p, n)``: the pointer n elements further."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        size = _byte_count(pointer)
        return b.add(args[0], b.mul(args[1], ir.Constant(_LONG, size)))

    return pointer(pointer, types.intp), generate


@intrinsic
def load(typing: Any, pointer: Any, index: Any) -> Any:
    """Emit ``load(p, i)``: element i."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        value = b.load(_place(b, pointer, *args))
        _tag(b.module, value, pointer)
        if pointer.dtype == types.boolean:
            return b.icmp_unsigned("!=", value, ir.Constant(_BYTE, 0))
        widen = WIDEN.get(pointer.stored)
        return value if widen is None else widen(b, value)

    return pointer.dtype(pointer, types.intp), generate


@intrinsic
def store(typing: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Emit ``store(p, i, x)``: element i becomes x, which has the pointer's dtype."""

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        value = args[2]
        if pointer.dtype == types.boolean:
            value = b.zext(value, _BYTE)
        if pointer.stored in NARROW:
            value = NARROW[pointer.stored](b, value)
        _tag(b.module, b.store(value, _place(b, pointer, *args[:2])), pointer)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, pointer.dtype), generate


def _byte_count(pointer: Pointer) -> int:
    if pointer.stored in WIDEN:
        return 2
    dtype = pointer.dtype
    return 1 if dtype == types.boolean else int(dtype.bitwidth) // 8


def _place(b: Any, pointer: Pointer, address: Any, index: Any) -> Any:
    base = b.inttoptr(address, memory_type(pointer).as_pointer())
    return b.gep(base, [index], inbounds=True)


def _tag(module: Any, instruction: Any, pointer: Pointer) -> None:
    """Attach alias scopes: the memory an instruction touches, and does not."""
    known = module.__dict__.setdefault("staticgrad_scopes", {})
    key = pointer.scope, pointer.scopes
    if key not in known:  # lists are as long as there are scopes
        whole = None, pointer.scopes
        if whole not in known:
            known[whole] = _scopes(module, pointer.scopes)
        known[key] = _scope_lists(module, pointer.scope, known[whole])
    own, others = known[key]
    instruction.set_metadata("alias.scope", own)
    instruction.set_metadata("noalias", others)


def _scopes(module: Any, count: int) -> list[Any]:
    domain = module.add_metadata([ir.MetaDataString(module, "staticgrad")])
    names = (f"memory {number}" for number in range(count))
    return [
        module.add_metadata([ir.MetaDataString(module, name), domain]) for name in names
    ]


def _scope_lists(module: Any, scope: int, scopes: list[Any]) -> tuple[Any, Any]:
    """Return the list of one scope, and that of the others."""
    others = [s for number, s in enumerate(scopes) if number != scope]
    return module.add_metadata([scopes[scope]]), module.add_metadata(others)
