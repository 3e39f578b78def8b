"""Convolutions: the kernels of each shape, direct and by Winograd's algorithm."""
