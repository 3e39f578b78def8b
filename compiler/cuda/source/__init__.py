"""CUDA source of kernels."""
