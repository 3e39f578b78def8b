"""Kernels of the CUDA training loop: gathering of batches, sums over steps.

The cells of a run lie on the device: samples seen and steps done (int64), totals
(float64) and, once a step has failed, what its status said. A graph that has been
captured once so serves every step: it gathers the rows that ``order[seen:]`` names,
runs the step, adds to the totals and moves on. After a failure nothing moves any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from staticgrad.compiler.codegen.text_emitter import Writer
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.compiler.cuda.source.expression_text import Expressions
from staticgrad.compiler.cuda.source.statement_lines import CODE
from staticgrad.compiler.cuda.source.typed_text import memory_name
from staticgrad.compiler.runtime.vm import STATUS_WORDS
from staticgrad.ir.types import DType

SEEN, STEPS, COUNTED, SEALED = 0, 1, 2, 3
CELLS = SEALED + STATUS_WORDS
"""Words: samples seen, steps done, samples whose loss was finite, and a copy of the
first failed status."""


def count_source() -> CudaSource:
    """Return the kernel that writes an int64: the position of a loop."""
    text = """def kernel(p0, position):
    if cuda.grid(1) == 0:
        p0[0] = position
"""
    return CudaSource(text, ("*int64", "int64"), (), None, False, False)


def gather_source(dtype: DType) -> CudaSource:
    """Return the kernel that gathers rows of data into a batch of `dtype`.

    The data is (outer, samples, inner), the batch (outer, size, inner).
    """
    kind = memory_name(dtype)
    text = f"""def kernel(batch, data, order, cells, total, size, inner, samples):
    first = cells[{SEEN}]
    at = uint32(cuda.grid(1))
    workers = uint32(cuda.gridsize(1))
    while at < total:
        row = uint32(at // inner)
        column = uint32(at - row * inner)
        outer = uint32(row // size)
        place = uint32(row - outer * size)
        sample = uint32(order[int64(first + int64(place))])
        source = uint32((outer * samples + sample) * inner + column)
        batch[at] = data[source]
        at = uint32(at + workers)
"""
    kinds = (f"*{kind}", f"*{kind}", "*int64", "*int64", *["uint32"] * 4)
    return CudaSource(text, kinds, (), None, False, kind == "float64")


def record_source(
    kinds: Sequence[str], once: Sequence[bool], per_step: bool, gate: int | None = None
) -> CudaSource:
    """Return the kernel that sums the scalars of steps, or keeps a failed status.

    A scalar weighs as much as the step has samples, or 1 where `once` says so. If there
    is a `gate`, those of samples count only where the scalar of that number is finite.
    With `per_step` they are written to a row of a table of all steps, too.
    """
    count, dtypes = len(kinds), [np.dtype(kind) for kind in kinds]
    table = ["table"] if per_step else []
    names = [f"p{n}" for n in range(count)]
    names += ["totals", *table, "cells", "size", "status"]
    writer = Writer()
    writer.line(f"def kernel({', '.join(names)}):")
    writer.line("    if cuda.grid(1) == 0:")
    writer.line(f"        if status[{CODE}] == 0:")
    step = Writer(depth=3)
    expressions, line = Expressions(step), step.line
    values = [
        expressions.temporary(expressions.as_float64(f"p{number}[0]", dtype))
        for number, dtype in enumerate(dtypes)
    ]
    for number, x in enumerate(values):
        weight, indent = "float64(1)" if once[number] else "float64(size)", ""
        if gate is not None and not once[number]:
            line(f"if {values[gate]} - {values[gate]} == float64(0):")
            indent = "    "
        line(f"{indent}totals[{number}] = totals[{number}] + {x} * {weight}")
        if number == gate:
            line(f"{indent}cells[{COUNTED}] = int64(cells[{COUNTED}] + size)")
        if per_step:
            place = f"int64(cells[{STEPS}] * int64({count}) + int64({number}))"
            line(f"table[{place}] = {x}")
    line(f"cells[{SEEN}] = int64(cells[{SEEN}] + size)")
    line(f"cells[{STEPS}] = int64(cells[{STEPS}] + int64(1))")
    writer.extend(step)
    writer.line(f"        elif cells[{SEALED + CODE}] == 0:")
    for word in range(STATUS_WORDS):
        writer.line(f"            cells[{SEALED + word}] = status[{word}]")
    pointers = [f"*{memory_name(dtype)}" for dtype in dtypes]
    tables = ("*float64",) * (1 + per_step)
    found = (*pointers, *tables, "*int64", "int64", "status")
    return CudaSource(writer.text(), found, (), None, False, True)
