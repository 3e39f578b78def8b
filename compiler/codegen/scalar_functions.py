"""The record of a function of the kernel language: all that the compiler knows of it.

A function is one line of a table beside what emits it: elementary ones in
function_table.py, others in conversions.py, float_bits.py, integer_division.py and
language.py, where all are put together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.errors import CompilerBug

Bound: TypeAlias = Callable[[Sequence[float]], float]

OWN = ""


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """One function.

    `make` gives its intrinsic, when a kernel first names it. `cuda` is its name in
    NVIDIA's libdevice, OWN where the CUDA target has an expression or text of that name
    (operator_text.py, function_text.py), None where kernels for GPUs never call it.
    `operations` is about how many vector operations it takes. `bound` is that of
    ``|result|``, given those of the arguments. `lanes` emits it for an Emitter's
    registers, where it may be a step of an Update.
    """

    name: str
    make: Callable[[], Any]
    cuda: str | None
    operations: int
    bound: Bound
    lanes: Callable[..., Value] | None = None


def table(*rows: ScalarFunction) -> dict[str, ScalarFunction]:
    """Functions by their names, of which there is one each."""
    found = {row.name: row for row in rows}
    if len(found) < len(rows):
        raise CompilerBug("two functions of the kernel language have one name")
    return found


def unbounded(_: Sequence[float]) -> float:
    """A result may be of any size."""
    return math.inf


def at_most_one(_: Sequence[float]) -> float:
    """A result is in -1..1."""
    return 1.0


def kept(arguments: Sequence[float]) -> float:
    """A result is about as large as the first argument."""
    return arguments[0]
