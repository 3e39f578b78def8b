"""Operations of the user's own, and calls of the user's functions from kernels."""
