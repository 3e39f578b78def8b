"""Kernels of the training loop: batches from resident data, and sums over steps.

The cells of a run lie on the device: samples seen and steps done (int64), totals
(float64) and, once a step has failed, what its status said. A graph that has been
captured once so serves every step: it gathers the rows that ``order[seen:]`` names,
runs the step, adds to the totals and moves on. After a failure nothing moves any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.compiler.codegen.cuda import CudaSource
from staticgrad.compiler.codegen.cuda_statements import CODE
from staticgrad.compiler.vm import STATUS_WORDS
from staticgrad.ir.types import BOOL, DType

SEEN, STEPS, SEALED = 0, 1, 2
CELLS = SEALED + STATUS_WORDS
"""Words: samples seen, steps done, and a copy of the first failed status."""


def count_source() -> CudaSource:
    """A kernel that writes an int64: the position of a loop."""
    text = """def kernel(p0, position):
    if cuda.grid(1) == 0:
        p0[0] = position
"""
    return CudaSource(text, ("*int64", "int64"), (), None, False, False)


def gather_source(dtype: DType) -> CudaSource:
    """Rows of data into a batch, for elements of `dtype`.

    The data is (outer, samples, inner), the batch (outer, size, inner).
    """
    kind = "uint8" if dtype == BOOL else dtype.name
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
    kinds: Sequence[str], once: Sequence[bool], per_step: bool
) -> CudaSource:
    """Add the scalars of a step to the totals, or keep the status of a failed one.

    A scalar weighs as much as the step has samples, or 1 where `once` says so.
    With `per_step` they are written to a row of a table of all steps, too.
    """
    count = len(kinds)
    pointers = [f"p{number}" for number in range(count)]
    table = ["table"] if per_step else []
    names = [*pointers, "totals", *table, "cells", "size", "status"]
    lines = [
        f"def kernel({', '.join(names)}):",
        "    if cuda.grid(1) == 0:",
        f"        if status[{CODE}] == 0:",
    ]
    for number in range(count):
        total = f"totals[{number}]"
        weight = "float64(1)" if once[number] else "float64(size)"
        lines += [
            f"            x{number} = float64(p{number}[0])",
            f"            {total} = {total} + x{number} * {weight}",
        ]
        if per_step:
            place = f"int64(cells[{STEPS}] * int64({count}) + int64({number}))"
            lines.append(f"            table[{place}] = x{number}")
    lines += [
        f"            cells[{SEEN}] = int64(cells[{SEEN}] + size)",
        f"            cells[{STEPS}] = int64(cells[{STEPS}] + int64(1))",
        f"        elif cells[{SEALED + CODE}] == 0:",
    ]
    lines += [
        f"            cells[{SEALED + word}] = status[{word}]"
        for word in range(STATUS_WORDS)
    ]
    text = "".join(f"{line}\n" for line in lines)
    scalars = tuple("*uint8" if kind == "bool" else f"*{kind}" for kind in kinds)
    tables = ("*float64",) * (1 + per_step)
    found = (*scalars, *tables, "*int64", "int64", "status")
    return CudaSource(text, found, (), None, False, True)
