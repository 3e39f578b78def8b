"""Native source from kernels: Numba source for people, vector functions as LLVM IR.

Reading order: writer (lines of text), scalar (a statement), loops (a kernel), then what
that source calls, whose table is language.py: pointers, numbers, status, philox and the
mathlib files. translate.py makes LLVM IR of it, native_compile.py machine code,
kernel_source.py asks the cache first.
"""
