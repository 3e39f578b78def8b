"""What the processor can do, asked of LLVM instead of a table of names.

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are respected, because the question goes to the
target for which Numba compiles.
"""

from __future__ import annotations

from functools import cache

from llvmlite import binding

from staticgrad.compiler.numba_internals import Target, target

_FMA = """
declare double @llvm.fma.f64(double, double, double)
define double @f(double %x, double %y, double %z) {
  %r = call double @llvm.fma.f64(double %x, double %y, double %z)
  ret double %r
}
"""

_WIDENED = """
define float @f(half %x) {
  %r = fpext half %x to float
  ret float %r
}
"""

_SUM = """
define <16 x float> @f(<16 x float> %x, <16 x float> %y) {
  %r = fadd <16 x float> %x, %y
  ret <16 x float> %r
}
"""


@cache
def has_fma() -> bool:
    """True if x * y + z in one rounding is an instruction, not a call of libm."""
    return "fmadd" in _assembly(_FMA, target())


@cache
def has_half() -> bool:
    """True if float16 is converted by instructions, not by calls of a library."""
    return "__extendhfsf2" not in _assembly(_WIDENED, target())


@cache
def vector_bytes() -> int:
    """The width of the widest vector registers: 16, 32 or 64 bytes."""
    text = _assembly(_SUM, target())
    widths = {"zmm": 64, "ymm": 32}
    return next((size for name, size in widths.items() if name in text), 16)


def registers() -> int:
    """How many vector registers there are: 32 with AVX-512 and on 64-bit ARM."""
    arm = target().triple.startswith(("aarch64", "arm64"))
    return 32 if vector_bytes() == 64 or arm else 16


def _assembly(text: str, wanted: Target) -> str:
    module = binding.parse_assembly(text)
    chosen = binding.Target.from_triple(wanted.triple)
    machine = chosen.create_target_machine(cpu=wanted.cpu, features=wanted.features)
    return str(machine.emit_assembly(module))
