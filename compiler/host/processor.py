"""Features of the processor, asked of LLVM instead of a table of names.

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are respected, because the question goes to the
target for which Numba compiles. It is asked once per machine: the answer is kept beside
the kernels.
"""

from __future__ import annotations

from functools import cache

from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host.cache import default_cache

_QUESTIONS = """
declare double @llvm.fma.f64(double, double, double)
define double @fused(double %x, double %y, double %z) {
  %r = call double @llvm.fma.f64(double %x, double %y, double %z)
  ret double %r
}
define float @widened(half %x) {
  %r = fpext half %x to float
  ret float %r
}
define <16 x float> @sum(<16 x float> %x, <16 x float> %y) {
  %r = fadd <16 x float> %x, %y
  ret <16 x float> %r
}
"""


def has_fma() -> bool:
    """Whether x * y + z in one rounding is an instruction, not a call of libm."""
    return "fmadd" in _assembly()


def has_half() -> bool:
    """Whether float16 is converted by instructions, not by library calls."""
    return "__extendhfsf2" not in _assembly()


@cache
def vector_bytes() -> int:
    """Return the width of the widest vector registers: 16, 32 or 64 bytes."""
    widths = {"zmm": 64, "ymm": 32}
    return next((size for name, size in widths.items() if name in _assembly()), 16)


def registers() -> int:
    """Return the number of vector registers: 32 with AVX-512 and on 64-bit ARM."""
    arm = internals.target().triple.startswith(("aarch64", "arm64"))
    return 32 if vector_bytes() == 64 or arm else 16


@cache
def _assembly() -> str:
    """Return LLVM's assembly of the questions."""
    module = internals.IRModule("", _QUESTIONS)
    return default_cache().text("processor", lambda: internals.assembly(module))
