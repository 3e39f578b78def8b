"""LLVM IR: registers, arithmetic, translation of kernel source."""
