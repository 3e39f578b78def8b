"""Loop hints for LLVM: whether to unroll a loop, and to take short rows whole.

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
"""Known trip counts from here on are unrolled: a row of 1000 exponentials takes
3 % less. Shorter loops would be unrolled before they could be vectorised, and take up
to 2.5 times as long; where the number is not known, unrolling costs a quarter of the
compile time and brings nothing."""

AT_ONCE = (2, 4)
"""Registers that are a short row. Longer rows gain nothing, some sums lose."""


def known_steps(start: Value, stop: Value) -> int:
    """Return the number of steps of a loop; 0 where it is unknown."""
    if isinstance(start, ir.Constant) and isinstance(stop, ir.Constant):
        return int(stop.constant - start.constant)
    match stop:
        case ir.Instruction(opname="add", operands=[first, ir.Constant() as count]):
            return int(count.constant) if _is_same(first, start) else 0
    return 0


def _is_same(x: Value, y: Value) -> bool:
    """Whether two values are one, or loaded from one place in succession."""
    loads = all(isinstance(v, ir.LoadInstr) for v in (x, y))
    return x is y or (loads and x.operands[0] is y.operands[0])


def hints_of(module: Any, steps: int) -> Any:
    """Return the metadata of a loop with so many steps, or None."""
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
    """Return the number of float32 registers of a short row; 0 if it is not short."""
    registers, rest = divmod(steps, processor.vector_bytes() // 4)
    short = not rest and registers in AT_ONCE and processor.registers() >= 32
    return registers if short else 0


class _Loop(ir.MDValue):
    """Metadata of one loop, self-referential."""

    def descr(self, buf: list[str]) -> None:
        """Write the text of it."""
        named = ", ".join(o.get_reference() for o in (self, *self.operands))
        buf += (f"distinct !{{ {named} }}", "\n")
