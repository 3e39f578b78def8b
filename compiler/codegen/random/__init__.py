"""Random numbers inside kernels."""
