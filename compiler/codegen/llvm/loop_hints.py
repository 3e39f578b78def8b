"""What LLVM is told about a loop: whether to unroll it, and to take short rows whole.

A row of two or four registers then has its sums and maxima combined once, and does not
wait for one long chain of operations after the other. Measured on rows of 64 float32
(Zen 4, four registers), ns an element: softmax 0.59 -> 0.53, its gradient 0.94 -> 0.79,
that of layer norm 0.97 -> 0.75, gelu 0.62 -> 0.57, an LSTM's step 3.5 -> 2.4. Where
there are 16 registers it is left to LLVM.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.host import processor

LONG = 100
"""Known numbers of steps from here on are unrolled: a row of 1000 exponentials takes
3 % less. Shorter loops would be unrolled before they could be vectorised, and take up
to 2.5 times as long; where the number is not known, unrolling costs a quarter of the
compile time and brings nothing."""

AT_ONCE = (2, 4)
"""Registers that are a short row. Longer rows gain nothing, some sums lose."""


def known_steps(start: Value, stop: Value) -> int:
    """How many steps a loop takes; 0 where that is not known."""
    if isinstance(start, ir.Constant) and isinstance(stop, ir.Constant):
        return int(stop.constant - start.constant)
    match stop:
        case ir.Instruction(opname="add", operands=[first, ir.Constant() as count]):
            return int(count.constant) if _is_same(first, start) else 0
    return 0


def _is_same(x: Value, y: Value) -> bool:
    """Whether two values are one, or loaded from one place, one behind the other."""
    loads = all(isinstance(v, ir.LoadInstr) for v in (x, y))
    return x is y or (loads and x.operands[0] is y.operands[0])


def hints_of(module: Any, steps: int) -> Any:
    """The metadata of a loop with so many steps, or None."""
    options = []
    if steps < LONG:
        options.append([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    if registers := _at_once(steps):
        name = ir.MetaDataString(module, "llvm.loop.interleave.count")
        options.append([name, ir.Constant(ir.IntType(32), registers)])
    if not options:
        return None
    nodes = [module.add_metadata(option) for option in options]
    return _Loop(module, nodes, name=str(len(module.metadata)))


def _at_once(steps: int) -> int:
    """How many registers of float32 a row of so many steps is, if it is short."""
    registers, rest = divmod(steps, processor.vector_bytes() // 4)
    short = not rest and registers in AT_ONCE and processor.registers() >= 32
    return registers if short else 0


class _Loop(ir.MDValue):
    """Metadata of one loop, which begins with itself."""

    def descr(self, buf: list[str]) -> None:
        """The text of it."""
        named = ", ".join(o.get_reference() for o in (self, *self.operands))
        buf += (f"distinct !{{ {named} }}", "\n")
