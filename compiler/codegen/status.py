"""Status word: how a kernel reports a bad value and continues.

The status is eight int64: lock, code, site, position, value, extent. A report is made
under the lock (a spin lock, taken with an atomic exchange) and is kept only if its
(site, position) is lower than the one there, so that errors do not depend on the order
of threads.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.conversions import convert

INDEX_OUT_OF_RANGE = 1
"""The code of a bad index."""

RAISED, RAISED_IN_PYTHON = 8, 9
"""The codes of an exception in a function of the user's."""

_LONG = ir.IntType(64)
_CODE, _SITE, _POSITION, _VALUE, _EXTENT = range(1, 6)


def _long(value: int) -> Any:
    return ir.Constant(_LONG, value)


@intrinsic(prefer_literal=True)
def check_index(
    typing: Any,
    value: Any,
    extent: Any,
    position: Any,
    site: Any,
    status: Any,
    wrap: Any,
) -> Any:
    """Emit ``check_index(value, extent, position, site, status, wrap)``: 0..extent-1.

    A value outside is reported and becomes 0.
    """
    number = types.unliteral(value)

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        given = convert(b, args[0], number, types.int64)
        whole, place, where, report_to = args[1:5]
        index = _wrapped(b, given, whole, number) if wrap.literal_value else given
        fits = b.icmp_unsigned("<", index, whole)
        with b.if_then(b.not_(fits), likely=False):
            report(b, INDEX_OUT_OF_RANGE, report_to, where, place, given, whole)
        return b.select(fits, index, _long(0))

    return (
        types.int64(number, types.int64, types.int64, types.int64, types.int64, wrap),
        generate,
    )


def _wrapped(b: Any, given: Any, extent: Any, number: Any) -> Any:
    """Count negative ones from the end; what is too large stays too large."""
    if number == types.uint64:
        return given
    below = b.icmp_signed("<", given, _long(0))
    return b.select(below, b.add(given, extent), given)


def report(
    b: Any, code: int, status: Any, site: Any, position: Any, value: Any,
    extent: Any = None,
) -> None:  # fmt: skip
    """Report an event at (site, position) in the status, if it is the first."""
    whole = _long(0) if extent is None else extent
    arguments = [status, _long(code), site, position, value, whole]
    b.call(_report(b.module), arguments)


def _report(module: Any) -> Any:
    """Return the module's report(status, code, site, position, value, extent)."""
    name = "staticgrad_report"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [_LONG] * 6)
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    status, code, site, position, value, extent = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    base = b.inttoptr(status, _LONG.as_pointer())
    _lock(b, function, base)
    with b.if_then(_is_first(b, base, site, position)):
        found = {_SITE: site, _POSITION: position, _VALUE: value, _EXTENT: extent}
        for slot, number in ({_CODE: code} | found).items():
            b.store(number, b.gep(base, [_long(slot)]))
    b.store_atomic(_long(0), base, "release", 8)
    b.ret_void()
    return function


def _lock(b: Any, function: Any, base: Any) -> None:
    spin = function.append_basic_block("spin")
    held = function.append_basic_block("held")
    b.branch(spin)
    b.position_at_end(spin)
    taken = b.atomic_rmw("xchg", base, _long(1), "acquire")
    b.cbranch(b.icmp_unsigned("==", taken, _long(0)), held, spin)
    b.position_at_end(held)


def _is_first(b: Any, base: Any, site: Any, position: Any) -> Any:
    """Whether nothing is reported yet, or only what comes later."""
    code, at_site, at_position = (
        b.load(b.gep(base, [_long(slot)])) for slot in (_CODE, _SITE, _POSITION)
    )
    nearer = b.and_(
        b.icmp_signed("==", site, at_site), b.icmp_signed("<", position, at_position)
    )
    lower = b.or_(b.icmp_signed("<", site, at_site), nearer)
    return b.or_(b.icmp_signed("==", code, _long(0)), lower)
