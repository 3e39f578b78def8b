"""``python -m benchmarks accuracy``: float32 functions at all 2^32 arguments.

Each is compared with staticgrad's own function in float64, whose largest error
(tests/compiler/codegen/test_math.py, against mpmath) is below 2^-27 of a unit in the
last place of float32. The error is counted in that unit at the exact result; for
functions with zeros away from the origin (lgamma, digamma) in that of max(|result|, 1).
What is infinite, NaN or zero has to be exactly that, with its sign.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import njit, types

from benchmarks.tables import duration, table
from staticgrad.compiler.codegen.language import namespace
from staticgrad.compiler.codegen.llvm.conversions import same
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter
from staticgrad.compiler.host.processor import has_fma

NAMES = tuple(
    "exp exp2 expm1 log log2 log10 log1p softplus sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc erfinv gelu lgamma digamma sin cos tan asin acos atan sqrt rsqrt "
    "cbrt".split()
)
GUARDED = ("sin", "cos", "tan")
ROOTED = ("lgamma", "digamma")
LIMITS = {"erfc": 5.0, "gelu": 5.0}
LIMIT_OF_LIBM = 5.0  # where there is no FMA, most functions are the C library's
LIMIT_ULP = 2.5
BLOCK = 1 << 14
PATTERNS = 1 << 32


_bits_of = same(1, lambda b, _kind, x: IREmitter(b, x.type).bits(x), types.uint32)
_float_of = same(
    1, lambda b, _kind, word: b.bitcast(word, ir.FloatType()), types.float32
)
_double_of = same(
    1, lambda b, _kind, word: b.bitcast(word, ir.DoubleType()), types.float64
)


def _examiner(name: str) -> Callable:
    """A function of the first pattern: (worst ulp, its pattern, mismatches)."""
    function = namespace()[f"{name}_any" if name in GUARDED else name]
    floor = np.float64(1.0 if name in ROOTED else 0.0)

    @njit(error_model="numpy", inline="always")
    def error(word):
        x = _float_of(np.uint32(word))
        got = function(x)
        exact = function(np.float64(x))
        rounded = np.float32(exact)
        same = _bits_of(got) == _bits_of(rounded)
        if exact != exact:
            return 0.0 if got != got else np.inf
        if exact == 0 or rounded - rounded != 0:
            return 0.0 if same else np.inf
        scale = np.float32(max(abs(exact), floor))
        exponent = max(_bits_of(scale) >> 23, 1)
        unit = _double_of(np.uint64(exponent + (1023 - 127 - 23)) << np.uint64(52))
        apart = abs(np.float64(got) - exact) / unit
        return apart if apart < np.inf else np.inf

    @njit(error_model="numpy", nogil=True)
    def examine(first, count, step, errors):
        worst, where, mismatches = 0.0, first, 0
        for start in range(first, first + count * step, BLOCK * step):
            for k in range(BLOCK):
                errors[k] = error(start + k * step)
            for k in range(BLOCK):
                mismatches += errors[k] == np.inf
                if errors[k] > worst and errors[k] != np.inf:
                    worst, where = errors[k], start + k * step
        return worst, where, mismatches

    return examine


def examine(name: str, step: int = 1) -> dict:
    """The largest error of a function in float32, over every `step`-th bit pattern."""
    count = PATTERNS // step // BLOCK * BLOCK
    before = time.perf_counter()
    found = _examiner(name)(0, count, step, np.empty(BLOCK))
    worst, pattern, mismatches = found
    return {
        "function": name,
        "arguments": count,
        "ulp": round(worst, 3),
        "at": float(np.uint32(pattern).view(np.float32)),
        "mismatches": int(mismatches),
        "seconds": round(time.perf_counter() - before, 1),
    }


def is_within(row: dict) -> bool:
    """Whether a function keeps to its limit."""
    own = LIMITS.get(row["function"], LIMIT_ULP)
    limit = own if has_fma() else LIMIT_OF_LIBM
    return bool(row["ulp"] <= limit and row["mismatches"] == 0)


def render(rows: Sequence[dict]) -> str:
    """The table."""
    header = ("function", "ulp", "at", "wrong special values", "arguments", "took")
    lines = [
        (
            row["function"],
            f"{row['ulp']:.2f}" + ("" if is_within(row) else " (!)"),
            f"{row['at']:.9g}",
            row["mismatches"],
            f"{row['arguments']:,}",
            duration(row["seconds"]),
        )
        for row in rows
    ]
    return table(header, lines)


def main(options: argparse.Namespace) -> list[dict]:
    """Examine the functions named, or all."""
    rows = []
    for name in options.names or NAMES:  # minutes each: tell what is known
        rows.append(examine(name, options.step))
        print(rows[-1], flush=True)
    print(render(rows))
    return rows
